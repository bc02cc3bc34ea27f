"""`make demo`: the whole story. `--once` runs it unattended; its last line is the report, its exit code the verdict."""

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deploy.demo import report, site_folder, training
from deploy.demo.controller import Controller, ControllerError, write_user_config
from deploy.demo.story import Story
from deploy.lab.cluster import Lab
from deploy.lab.errors import LabError

SABOTAGES = ("rng", "data", "lr", "weights")
PLAN = training.Plan()
# Just behind the second checkpoint, in the second of three epochs, and far enough from the third that the second or so
# until the fault strikes does not reach it: some steps will have to be repeated.
KILL_AFTER_STEP = 2 * PLAN.checkpoint_every + 4
JOB_LIMIT_S = 600


class DemoError(RuntimeError):
    """The story took another course than it should; the text says which."""


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return tell(args)
    except (LabError, ControllerError, DemoError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted, everything is stopped", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--once", action="store_true", help="unattended; one JSON object as the last line")
    parser.add_argument("--fault", choices=("kill-node", "cut-network"), default="kill-node")
    parser.add_argument("--sabotage", choices=SABOTAGES, help="damage that part between load and verification")
    parser.add_argument("--victim", choices=("worker", "batch"), default="worker", help="which of the job's two nodes")
    parser.add_argument("--loopback", action="store_true", help="no namespaces: a killed node refuses, is not silent")
    parser.add_argument("--keep", type=Path, default=Path("var/demo").absolute(), help="where the loss files go")
    return parser


def tell(args: argparse.Namespace) -> int:
    with _site(args.loopback) as (lab, controller):
        password = controller.manage("create_user", lab.users["owner"]).split()[-1]
        print(f"log in as the job's owner: {lab.users['owner']}, password {password}", flush=True)
        owner_token = controller.token(lab.users["owner"], "submit")
        write_user_config(Path(lab.state.as_json()["homes"]["owner"]), lab.users["owner"], controller.url, owner_token)
        token = controller.token(lab.users["owner"], "read")
        result = _run(args, lab, controller, token)
        if not args.once:
            _stay(controller, result)
    print(json.dumps(result), flush=True)
    return 0 if result["verified"] and result["bit_identical"] else 1


@contextlib.contextmanager
def _site(loopback: bool) -> Iterator[tuple[Lab, Controller]]:
    """Lab, site and controller; all of it gone afterwards, whatever happened inside."""
    print("making a real Slurm of four nodes, and a site in it", flush=True)
    lab = Lab.up(loopback=loopback)
    controller = None
    try:
        site = site_folder.make(lab.dir / "site", Path(sys.prefix))
        controller = Controller(lab, site)
        controller.start()
        print(f"Relume answers at {controller.url}  {controller.first_login()}", flush=True)
        yield lab, controller
    finally:
        if controller is not None:
            controller.stop()
        lab.down()


def _run(args: argparse.Namespace, lab: Lab, controller: Controller, token: str) -> dict[str, Any]:
    story = Story(time.time())
    job = training.submit(lab, controller.site, "gpt", PLAN, args.sabotage or "")
    story.say(f"submitted Slurm job {job.slurm_job_id} as {job.run_id}: {controller.url}/jobs/{job.run_id}")
    path = f"/api/v1/jobs/{job.run_id}"
    _until(lambda d: (d["step"] or 0) >= KILL_AFTER_STEP, "the second epoch", controller, token, path, story, job)
    kill_at = _break(args, lab, job, story)
    done = _until(lambda d: d["state"] in ("finished", "stopped"), "the end", controller, token, path, story, job)
    run = training.outcome(job, args.keep) if done["state"] == "finished" else None
    reference = _reference(lab, controller, token, story, args.keep) if run is not None else None
    done = controller.get(path, token) or done
    return report.build(done, kill_at, run, reference)


def _break(args: argparse.Namespace, lab: Lab, job: training.Job, story: Story) -> float:
    """Break one node of the job; the Unix time just before it."""
    batch = training.host_of_rank_zero(lab, job.slurm_job_id)
    nodes = lab.run("squeue", "-h", "-j", job.slurm_job_id, "-o", "%N", user="controller").stdout.strip()
    names = lab.run("scontrol", "show", "hostnames", nodes, user="controller").stdout.split()
    victim = batch if args.victim == "batch" else next(name for name in names if name != batch)
    at = time.time()
    if args.fault == "kill-node":
        lab.kill_node(victim)
    else:
        lab.cut_network(victim)
    story.say(f"{args.fault} {victim}", at)
    return at


def _reference(lab: Lab, controller: Controller, token: str, story: Story, keep: Path) -> training.Outcome:
    """The same program, uninterrupted, in an empty folder, on the nodes that are left."""
    job = training.submit(lab, controller.site, "gpt-reference", PLAN)
    story = Story(story.start)  # its attempts are numbered from 1 again
    story.say(f"the uninterrupted reference: Slurm job {job.slurm_job_id}, {job.run_id}")
    path = f"/api/v1/jobs/{job.run_id}"
    done = _until(lambda d: d["state"] in ("finished", "stopped"), "its end", controller, token, path, story, job)
    if done["state"] != "finished" or len(done["attempts"]) != 1:
        raise DemoError(f"the reference did not run through: {done['state_reason']}\n{job.log()[-2000:]}")
    return training.outcome(job, keep)


def _until(
    reached: Any, what: str, controller: Controller, token: str, path: str, story: Story, job: training.Job
) -> dict[str, Any]:
    """Follow the training job until `reached(detail)`; DemoError with the job's log after JOB_LIMIT_S."""
    end = time.monotonic() + JOB_LIMIT_S
    while time.monotonic() < end:
        detail = controller.get(path, token)
        if detail is not None:
            story.follow(detail)
            if reached(detail):
                return detail
            if detail["state"] in ("finished", "stopped", "cancelled"):
                raise DemoError(f"{what} was not reached: {detail['state_reason']}\n{job.log()[-2000:]}")
        time.sleep(0.3)
    raise DemoError(f"{what} was not reached within {JOB_LIMIT_S} s\n{job.log()[-2000:]}\n{controller.tail()}")


def _stay(controller: Controller, result: dict[str, Any]) -> None:
    verdict = "verified, bit for bit" if result["bit_identical"] and result["verified"] else "NOT verified"
    print(f"\n{verdict}. The page stays open at {controller.url}/jobs/{result['run_id']}; Ctrl-C ends everything.")
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(3600)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main())
