"""`relume sbatch` as a process, around a fake sbatch: identity, registration, what reaches sbatch."""

import json
import sys
from typing import Any

import pytest

from tests.worker_hooks.sbatch_desk import Desk
from worker_hooks.protocol.identity import token_digest

pytestmark = pytest.mark.pure


def test_a_plain_script(desk: Desk) -> None:
    done = desk.submit("-N2", "train.sh", "--lr", "0.1")
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 77\n")
    assert done.stderr.splitlines() == ["relume: added --requeue --open-mode=append", "sbatch: a site's warning"]
    call, identity = desk.call, desk.identity
    assert call["argv"] == ["--requeue", "--open-mode=append", "-N2", "train.sh", "--lr", "0.1"]
    assert call["identity_there"], "a job that starts at once must find it"
    assert call["environ"]["RELUME_RUN_ID"] == identity["run_id"]
    assert call["environ"]["RELUME_IDENTITY"] == str(desk.identities[0])
    assert (identity["slurm_job_id"], identity["registered"], identity["name"]) == ("77", True, "mosaic")
    assert (identity["script"], identity["argv"]) == ("train.sh", ["-N2", "train.sh", "--lr", "0.1"])
    (made,) = desk.controller.registrations
    assert made["token_sha256"] == token_digest(identity["token"]) and made["api_token"] == "user-token"
    assert made["slurm_job_id"] == "77" and made["run_id"] == identity["run_id"]


def test_the_token_goes_nowhere_but_into_the_private_file(desk: Desk) -> None:
    done = desk.submit("train.sh")
    token = desk.identity["token"]
    assert token not in json.dumps(desk.call) + done.stdout + done.stderr + json.dumps(desk.controller.registrations)
    (path,) = desk.identities
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700


def test_a_controller_that_is_away_prevents_nothing(desk: Desk) -> None:
    desk.controller.away()
    done = desk.submit("train.sh")
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 77\n")
    assert "does not answer" in done.stderr and "the job is submitted" in done.stderr
    assert desk.identity["registered"] is False and desk.identity["slurm_job_id"] == "77"


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        ({"step_s": 22.0, "save_s": 45.0}, True),  # case R31
        ({"step_s": 2.0, "save_s": 5.0}, False),
        ({"step_s": 22.0}, False),
        ({"step_s": "soon", "save_s": None}, False),
        ([1, 2], False),
    ],
)
def test_a_signal_that_comes_too_late_for_this_jobs_saves_is_said(desk: Desk, measured: Any, said: bool) -> None:
    desk.controller.measured = measured
    done = desk.submit("--signal=USR2@90", "train.sh")
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 77\n")
    needed = "a step (22 s), a save (45 s) and 60 s of margin need 127 s: --signal=USR2@127"
    assert (needed in done.stderr) == said and ("margin" in done.stderr) == said


@pytest.mark.parametrize("mode", ["garbage", "error", "cut", "drip"])
def test_a_controller_that_stumbles_prevents_nothing(desk: Desk, mode: str) -> None:
    desk.controller.mode = mode
    done = desk.submit("train.sh")
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 77\n")
    assert desk.identity["registered"] is False


def test_require_makes_it_fatal_before_anything_is_submitted(desk: Desk) -> None:
    desk.controller.away()
    done = desk.submit("--quiet", "--relume-require", "train.sh")
    assert (done.returncode, done.stdout) == (69, "") and "nothing submitted" in done.stderr
    assert not desk.called and desk.identities == []


def test_require_with_a_controller_registers_first_and_then_the_job_id(desk: Desk) -> None:
    assert desk.submit("--relume-require", "train.sh").returncode == 0
    assert [made["slurm_job_id"] for made in desk.controller.registrations] == [None, "77"]


def test_no_configuration_at_all_still_submits(desk: Desk) -> None:
    del desk.environ["RELUME_URL"], desk.environ["RELUME_API_TOKEN"]
    done = desk.submit("train.sh")
    assert done.returncode == 0 and "no controller is configured" in done.stderr


def test_the_configuration_file(desk: Desk) -> None:
    folder = desk.folder / ".config" / "relume"
    folder.mkdir(parents=True)
    config = {"url": desk.environ.pop("RELUME_URL"), "api_token": "from-file"}
    del desk.environ["RELUME_API_TOKEN"]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert desk.submit("train.sh").returncode == 0
    assert desk.controller.registrations[0]["api_token"] == "from-file"


def test_quiet(desk: Desk) -> None:
    done = desk.submit("-Q", "train.sh", FAKE_OUTPUT="")
    assert (done.stdout, done.stderr) == ("", "sbatch: a site's warning\n")
    assert desk.identity["registered"] is False, "without a job id its agent registers it again"


def test_parsable(desk: Desk) -> None:
    done = desk.submit("--parsable", "train.sh", FAKE_OUTPUT="78;big\n")
    assert done.stdout == "78;big\n"
    assert (desk.identity["slurm_job_id"], desk.identity["cluster"]) == ("78", "big")


def test_sbatchs_exit_code_and_output_when_it_refuses(desk: Desk) -> None:
    done = desk.submit("train.sh", FAKE_OUTPUT="", FAKE_CODE="3")
    assert (done.returncode, done.stdout) == (3, "") and "a site's warning" in done.stderr
    assert desk.identities == [] and desk.controller.registrations == []


def test_an_sbatch_that_was_killed_leaves_the_identity(desk: Desk) -> None:
    """The job may have been taken before the signal came."""
    assert desk.submit("train.sh", FAKE_OUTPUT="", FAKE_CODE="137").returncode == 137
    assert len(desk.identities) == 1


def test_a_waited_for_jobs_exit_code(desk: Desk) -> None:
    assert desk.submit("--wait", "train.sh", FAKE_CODE="9").returncode == 9
    assert desk.identity["slurm_job_id"] == "77", "it was submitted although it failed"


@pytest.mark.parametrize("option", ["--test-only", "--version", "--usage", "-h"])
def test_what_submits_nothing_is_passed_through(desk: Desk, option: str) -> None:
    desk.submit(option, "train.sh")
    assert desk.call["argv"] == [option, "train.sh"] and desk.identities == []


def test_a_script_from_standard_input_arrives_byte_for_byte(desk: Desk) -> None:
    script = "#!/bin/sh\n#SBATCH --no-requeue\n#RELUME name=piped\necho ü\n"
    done = desk.submit("-N1", stdin=script, READ="1")
    assert done.returncode == 0 and desk.call["stdin"] == script
    assert desk.call["argv"] == ["--open-mode=append", "-N1"] and desk.identity["name"] == "piped"


def test_wrap_leaves_standard_input_alone(desk: Desk) -> None:
    desk.submit("--wrap=hostname", stdin="for sbatch", READ="1")
    assert desk.call["argv"][-1] == "--wrap=hostname" and desk.call["stdin"] == "for sbatch"


def test_an_array_has_one_identity_for_all_of_its_tasks(desk: Desk) -> None:
    done = desk.submit("--array=1-4%2", "train.sh")
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 77\n")
    assert desk.call["environ"]["RELUME_RUN_ID"] == f"{desk.identity['run_id']}-%a"
    (made,) = desk.controller.registrations
    assert (made["run_id"], made["array"], made["slurm_job_id"]) == (desk.identity["run_id"], "1-4%2", "77")


def test_the_users_comment_and_export_survive(desk: Desk) -> None:
    desk.submit("--comment", "mine", "--export=A,B=2", "train.sh")
    names = "RELUME_RUN_ID,RELUME_IDENTITY"
    assert desk.call["argv"][2:] == ["--comment", "mine", f"--export=A,B=2,{names}", "train.sh"]


def test_directives_and_the_command_line(desk: Desk) -> None:
    script = "#!/bin/sh\n#RELUME name=lower checkpoint-root=ck\ntrue\n"
    (desk.folder / "own.sh").write_text(script, encoding="utf-8")
    desk.submit("--relume-name=upper", "own.sh")
    assert desk.identity["name"] == "upper" and desk.identity["checkpoint_root"] == str(desk.folder / "ck")
    assert desk.call["environ"]["RELUME_CHECKPOINT_ROOT"] == str(desk.folder / "ck")


@pytest.mark.parametrize("argv", [["--relume-nmae=x", "train.sh"], ["bad.sh"]])
def test_our_own_usage_errors_submit_nothing(desk: Desk, argv: list[str]) -> None:
    (desk.folder / "bad.sh").write_text("#!/bin/sh\n#RELUME nmae=x\n", encoding="utf-8")
    done = desk.submit(*argv)
    assert done.returncode == 2 and "nmae" in done.stderr and not desk.called


def test_a_script_that_is_not_there_is_sbatchs_to_refuse(desk: Desk) -> None:
    desk.submit("missing.sh", FAKE_CODE="1", FAKE_OUTPUT="")
    assert desk.called and desk.identities == []


def test_a_dry_run_shows_the_call_and_writes_nothing(desk: Desk) -> None:
    done = desk.submit("--relume-dry-run", "-J", "a b", "train.sh")
    assert done.stdout == "sbatch --requeue --open-mode=append -J 'a b' train.sh\n"
    assert not desk.called and desk.identities == []


def test_a_state_folder_that_cannot_be_written_costs_the_tracking_only(desk: Desk) -> None:
    (desk.folder / "state").write_text("in the way", encoding="utf-8")
    done = desk.submit("train.sh")
    assert done.returncode == 0 and "Slurm's side only" in done.stderr
    assert "RELUME_IDENTITY" not in desk.call["environ"]
    assert desk.submit("--relume-require", "train.sh").returncode == 69


def test_without_sbatch(desk: Desk) -> None:
    done = desk.submit("train.sh", PATH="/nowhere")
    assert done.returncode == 127 and "sbatch cannot be run" in done.stderr and desk.identities == []


def test_what_an_agent_registered_meanwhile_stays_registered(desk: Desk) -> None:
    fake = desk.folder / "bin" / "sbatch"
    mark = "import json, os; p = os.environ['RELUME_IDENTITY']; d = json.load(open(p)); d['registered'] = True"
    fake.write_text(f'#!{sys.executable}\n{mark}; json.dump(d, open(p, "w")); print("Submitted batch job 5")\n')
    desk.controller.away()
    desk.submit("train.sh")
    assert desk.identity["registered"] is True and desk.identity["slurm_job_id"] == "5"


@pytest.mark.parametrize(
    "config",
    [
        {"url": 5, "api_token": "t"},
        {"url": ["http://x"], "api_token": {}},
        {"url": "http://\0x:1", "api_token": "t"},
        {"url": "http://a..b:1", "api_token": "t"},
        "[" * 100_000,
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_configuration_that_makes_no_sense_costs_no_submission(desk: Desk, config: Any) -> None:
    folder = desk.folder / "odd" / "relume"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    desk.environ.pop("RELUME_URL", None)
    desk.environ.pop("RELUME_API_TOKEN", None)
    done = desk.submit("train.sh", XDG_CONFIG_HOME=str(folder.parent))
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 77\n"), done.stderr
    assert "Traceback" not in done.stderr
    assert desk.identity["slurm_job_id"] == "77"
