"""`relume sbatch` as a process, around a fake sbatch that writes down how it was called."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.worker_hooks.controller_double import ControllerDouble
from worker_hooks.protocol.identity import token_digest

pytestmark = pytest.mark.pure

FAKE = """\
#!{python}
import json, os, sys, time
data = "" if sys.stdin is None or sys.stdin.isatty() or "READ" not in os.environ else sys.stdin.read()
identity = os.environ.get("RELUME_IDENTITY")
there = bool(identity) and os.path.exists(identity)
with open({record!r}, "w") as file:
    json.dump({{"argv": sys.argv[1:], "environ": dict(os.environ), "stdin": data, "identity_there": there}}, file)
sys.stderr.write("sbatch: a site's warning\\n")
sys.stdout.write(os.environ.get("FAKE_OUTPUT", "Submitted batch job 77\\n"))
sys.exit(int(os.environ.get("FAKE_CODE", "0")))
"""
WRAPPER = "import sys; from worker_hooks.cli.main import main; sys.exit(main())"
REPOSITORY = Path(__file__).parents[2]


@dataclass
class Desk:
    """A user's account: home, script, configuration, and the fake sbatch in PATH."""

    folder: Path
    controller: ControllerDouble
    environ: dict[str, str] = field(default_factory=dict)

    def submit(self, *argv: str, stdin: str | None = None, **environ: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-c", WRAPPER, "sbatch", *argv],
            check=False,
            env={**self.environ, **environ},
            cwd=self.folder,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=30,
        )

    @property
    def call(self) -> dict[str, Any]:
        """How sbatch was called."""
        data: dict[str, Any] = json.loads((self.folder / "call.json").read_text(encoding="utf-8"))
        return data

    @property
    def called(self) -> bool:
        return (self.folder / "call.json").exists()

    @property
    def identities(self) -> list[Path]:
        return sorted((self.folder / "state" / "identities").glob("*.json"))

    @property
    def identity(self) -> dict[str, Any]:
        (path,) = self.identities
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return data


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    controller = ControllerDouble()
    made = Desk(tmp_path, controller)
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / "sbatch"
    fake.write_text(FAKE.format(python=sys.executable, record=str(tmp_path / "call.json")), encoding="utf-8")
    fake.chmod(0o755)
    (tmp_path / "train.sh").write_text("#!/bin/sh\n#SBATCH -J mosaic\nsrun train\n", encoding="utf-8")
    made.environ = {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "PYTHONPATH": str(REPOSITORY),
        "RELUME_STATE_DIR": str(tmp_path / "state"),
        "RELUME_URL": controller.url,
        "RELUME_API_TOKEN": "user-token",
    }
    yield made
    controller.away()


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


def test_on_a_terminal_sbatch_finds_a_terminal(desk: Desk) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", WRAPPER, "sbatch", "-Q", "train.sh"]
    fake = desk.folder / "bin" / "sbatch"
    fake.write_text('#!/bin/sh\ntest -t 1 && echo "a terminal"\n', encoding="utf-8")
    with subprocess.Popen(command, env=desk.environ, cwd=desk.folder, stdout=theirs) as process:
        os.close(theirs)
        assert os.read(ours, 100).strip() == b"a terminal"
        assert process.wait(timeout=20) == 0
    os.close(ours)


def test_the_wrapper_is_light(desk: Desk) -> None:
    """Before sbatch has answered nothing heavy is imported: this is what keeps the start under 80 ms."""
    heavy = {"ssl", "http", "http.client", "asyncio", "django", "torch", "numpy", "argparse", "email", "urllib.request"}
    show = (
        "import sys, worker_hooks.cli.sbatch as wrapper\n"
        "from worker_hooks.cli.main import main\n"
        "wrapper._after = lambda *_: print(sorted(sys.modules), file=sys.stderr)\n"
        "main(['sbatch', '-Q', 'train.sh'])"
    )
    command = [sys.executable, "-c", show]
    done = subprocess.run(
        command, check=False, env=desk.environ, cwd=desk.folder, capture_output=True, text=True, timeout=30
    )
    modules = set(json.loads(done.stderr.splitlines()[-1].replace("'", '"')))
    assert "worker_hooks.cli.submission" in modules
    assert modules & heavy == set()


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


def test_a_script_from_a_pipe_is_read_by_both(desk: Desk) -> None:
    """`relume sbatch <(make_script)`: as with sbatch itself."""
    reader = desk.folder / "bin" / "sbatch"
    reader.write_text(
        f'#!/bin/sh\nfor last; do :; done\ncat "$last" > {desk.folder}/seen\necho Submitted batch job 77\n'
    )
    script = "#!/bin/sh\n#SBATCH --no-requeue\ntrue\n"
    for word, redirected in (("/dev/fd/9", "9"), ("/dev/stdin", "0")):
        (desk.folder / "seen").unlink(missing_ok=True)
        command = f'printf %s "$SCRIPT" | "$PYTHON" -c "$WRAPPER" sbatch {word} {redirected}<&0'
        environ = desk.environ | {"SCRIPT": script, "PYTHON": sys.executable, "WRAPPER": WRAPPER}
        done = subprocess.run(
            ["sh", "-c", command], env=environ, capture_output=True, text=True, timeout=30, check=True
        )
        assert (desk.folder / "seen").read_text() == script, done.stderr
        assert "--requeue" not in done.stderr
