"""The tasks. `sweep` decides (queue `decide`, reads Slurm), `run_actions` acts (queue `actions`, the only one whose
worker needs write rights in Slurm), `check_rights` finds out which it has. All are idempotent: each looks at everything
that is due. Adapters are imported inside them, because the web process imports this module to wake a sweep.
"""

import structlog
from celery import shared_task
from kombu.exceptions import OperationalError

log = structlog.get_logger()

WAKE_EXPIRES_S = 5


@shared_task(name="controller.sweep", expires=WAKE_EXPIRES_S)  # type: ignore[untyped-decorator]
def sweep() -> None:
    from controller.sweep import sweep as run
    from controller.wiring import site

    done = run(site())
    if done.opened or done.committed:
        _send("controller.run_actions")


@shared_task(name="controller.run_actions", expires=WAKE_EXPIRES_S)  # type: ignore[untyped-decorator]
def run_actions() -> None:
    from controller.remediation.executor import run_actions as run
    from controller.wiring import site

    if run(site()):
        wake()


@shared_task(name="controller.check_rights", expires=WAKE_EXPIRES_S)  # type: ignore[untyped-decorator]
def check_rights() -> None:
    """On the queue of the actions: only its worker is whom Slurm would see."""
    from controller import clock
    from controller.models import Cluster
    from controller.snapshot import rights
    from controller.wiring import find_rights

    for cluster in Cluster.objects.all():
        if rights.due(cluster, clock.now()):
            rights.refresh(cluster, find_rights, clock.now())


def wake() -> None:
    """A sweep sooner than the next tick. Never fails: without a broker the tick does it."""
    _send("controller.sweep")


def _send(name: str) -> None:
    from controller.celery import app

    try:
        app.send_task(name, expires=WAKE_EXPIRES_S, retry=False, ignore_result=True)
    except (OperationalError, OSError) as error:
        log.warning("not_woken", task=name, error=str(error))
