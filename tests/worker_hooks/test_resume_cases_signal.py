"""Resume case R31 and relatives: a signal before the end that comes too late for a step and a save is said when the job
is submitted, in whatever way the signal was asked for."""

import pytest

from tests.worker_hooks.sbatch_desk import Desk
from tests.worker_hooks.test_sbatch_plan import ADDED, plan
from worker_hooks.cli.signals import of_srun, parse, too_late, unheard

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("argv", "script", "environ", "asked"),
    [
        (["--signal=USR1@30", "t"], "", {}, "USR1@127"),
        (["--signal", "B:TERM@90", "t"], "", {}, "B:TERM@127"),
        (["--signal=R:USR2@126", "t"], "", {}, "R:USR2@127"),
        (["t"], "#SBATCH --signal=USR2@30\n", {}, "USR2@127"),
        (["t"], "#SBATCH --signal RB:12@5\n", {}, "RB:USR2@127"),
        (["t"], "#SBATCH --signal=USR2@300\n#SBATCH --signal=USR2@30\n", {}, "USR2@127"),
        (["--signal=USR2@30", "t"], "#SBATCH --signal=USR2@900\n", {}, "USR2@127"),
        (["t"], "#SBATCH --signal=USR2@900\n", {"SBATCH_SIGNAL": "USR2"}, "USR2@127"),
        (["t"], "", {"RELUME_SIGNAL": "HUP@120"}, "HUP@127"),
        (["t"], "", {"RELUME_SIGNAL": "USR2@0"}, "USR2@127"),
    ],
)
def test_however_it_was_asked_for(argv: list[str], script: str, environ: dict[str, str], asked: str) -> None:
    """R31: 22 s a step, 45 s a save, 60 s of margin. What is proposed is taken as it is, for the same receiver."""
    option = plan([*ADDED, *argv], script, **environ).signal
    assert option is not None
    said = too_late(option, step_s=22.0, save_s=45.0)
    assert said is not None and f"--signal={asked} " in said and "up to 60 s earlier" in said
    assert too_late(parse(asked), step_s=22.0, save_s=45.0) is None


@pytest.mark.parametrize(
    ("argv", "script", "environ"),
    [
        (["--signal=USR2@127", "t"], "", {}),
        (["--signal=USR2@900", "t"], "#SBATCH --signal=USR2@5\n", {}),
        (["t"], "#SBATCH --signal=USR2@5\n", {"SBATCH_SIGNAL": "USR2@127"}),
        (["t"], "", {"RELUME_SIGNAL": "USR2@127"}),
    ],
)
def test_one_that_is_early_enough_is_left_alone(argv: list[str], script: str, environ: dict[str, str]) -> None:
    made = plan([*ADDED, *argv], script, **environ)
    assert made.signal is not None and too_late(made.signal, step_s=22.0, save_s=45.0) is None
    assert [note for note in made.notes if not note.startswith("added")] == []


def test_a_save_that_no_signal_is_early_enough_for() -> None:
    said = too_late(parse("USR2@65535"), step_s=70_000.0, save_s=45.0)
    assert said is not None and "more than sbatch takes" in said and "--signal=" not in said


@pytest.mark.parametrize(
    ("environ", "words"), [({"RELUME_SIGNAL": "USR1@300"}, "NCCL"), ({"RELUME_SIGNAL": "USR2@30"}, "30 s before")]
)
def test_what_the_site_asks_for_is_commented_on_too(environ: dict[str, str], words: str) -> None:
    assert any(words in note for note in plan([*ADDED, "t"], "", **environ).notes)


@pytest.mark.parametrize(("text", "heard"), [("USR2@300", True), ("TERM@300", False), ("HUP@300", False)])
def test_a_signal_that_no_run_takes(text: str, heard: bool) -> None:
    assert (unheard(parse(text)) == []) == heard
    assert unheard(parse(f"B:{text}")) == [], "the batch script may pass on another one"
    assert any("without a save" in note for note in plan([*ADDED, f"--signal={text}", "t"]).notes) == (not heard)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("srun --signal=USR1@30 python train.py", "USR1@30"),
        ("  exec srun -n2 \\\n   --signal USR2@90 python train.py", "USR2@90"),
        ("X=1 srun --mpi=none --signal=B:TERM@5 x | tee log", "B:TERM@5"),
        ("# srun --signal=USR1@30 python train.py", None),
        ("srun python train.py; kill --signal USR1 $pid", None),
        ("srun python train.py", None),
    ],
)
def test_an_srun_that_asks_for_it_inside_the_job(line: str, found: str | None) -> None:
    said = of_srun(f"#!/bin/sh\n#SBATCH -N2\n{line}\n".encode())
    assert said == ([] if found is None else [f"srun --signal={found} does nothing inside a job: give it to sbatch"])


@pytest.mark.parametrize("way", ["option", "script", "environment", "site"])
def test_it_is_said_by_the_command_once_its_saves_are_known(desk: Desk, way: str) -> None:
    """R31: from what the last job of that name has shown; the submission itself is never touched."""
    desk.controller.measured = {"step_s": 22.0, "save_s": 45.0}
    (desk.folder / "late.sh").write_text("#!/bin/sh\n#SBATCH --signal=USR2@30\nsrun train\n", encoding="utf-8")
    argv = {"option": ["--signal=USR2@30", "train.sh"], "script": ["late.sh"]}.get(way, ["train.sh"])
    names = {"environment": "SBATCH_SIGNAL", "site": "RELUME_SIGNAL"}
    done = desk.submit(*argv, **({names[way]: "USR2@30"} if way in names else {}))
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 77\n")
    assert "--signal=USR2@127 (saves go on as they are due)" in done.stderr
