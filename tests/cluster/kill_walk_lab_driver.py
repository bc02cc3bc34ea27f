"""The kill walk on the real lab: one controller process, killed right after its Nth write to Slurm, or run to the end.

`python -m tests.cluster.kill_walk_lab_driver LAB start|go_on|look MOMENT`; DATABASE_URL names the database file.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import django

django.setup()

from django.core.management import call_command  # noqa: E402

from controller.ledger import commit, lease  # noqa: E402
from controller.models import Action, Attempt, Incident, NodeHold, TrainingJob  # noqa: E402
from controller.remediation import executor, turn  # noqa: E402
from deploy.lab.cluster import Lab  # noqa: E402
from tests.cluster.lab_world import LabWorld  # noqa: E402
from tests.controller.kill_walk_driver import NEVER, KilledAfterWrite, Moments  # noqa: E402

# Shorter than in earnest, so that the successor need not wait half a minute for the dead one's claims.
SHORT_LEASE_S = 4.0


def main(lab: Path, part: str, moment: int) -> None:
    for module in (commit, lease, executor, turn):
        module.LEASE_S = SHORT_LEASE_S  # type: ignore[attr-defined]
    world = LabWorld(Lab(lab))
    if part == "start":
        call_command("migrate", verbosity=0)
        world.start()
        moments = Moments(moment)
        moments.begun = True
        port: Any = KilledAfterWrite(world.slurm, moments)  # type: ignore[arg-type]
        world.site = replace(world.site, port=port)
        world.kill_node(2)
    world.job_id = TrainingJob.objects.get().slurm_job_id
    world.silent = {"gpu2"}
    if part != "look":
        world.until(_over, "recovering, and the survivors given back", 90, ticking=True)
        return
    view, node = world.view(), world.slurm.read_node("gpu2")
    assert node is not None
    found = {
        "incidents": list(Incident.objects.values_list("state", flat=True)),
        "holds": [[hold.token, hold.adopted] for hold in NodeHold.objects.all()],
        "actions": sorted([action.kind, action.state] for action in Action.objects.all()),
        "attempts": Attempt.objects.count(),
        "reservations": sorted(world.slurm.read_cluster().reservations),
        "job": [view.state.base, view.restarts, str(view.hold_kind), list(view.excluded_nodes), list(view.nodes)],
        "node": [node.state.drain, node.state.down, node.reason],
    }
    print(json.dumps(found))


def _over() -> bool:
    if Action.objects.filter(state__in=("ready", "claimed")).exists():
        return False
    return Incident.objects.exclude(state__in=("open", "diagnosed", "acting")).exists()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]) or NEVER)
