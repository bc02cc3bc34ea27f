#!/usr/bin/env python3
"""A real Slurm of several virtual nodes on this machine: make it, break it, remove it. See README.md here."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path

# Run as a script, Python puts this folder first on the path; the package is found from the repository's root.
sys.path[0] = str(Path(__file__).resolve().parents[2])

from deploy.lab import making  # noqa: E402
from deploy.lab.cluster import Lab  # noqa: E402
from deploy.lab.errors import LabError  # noqa: E402
from deploy.lab.state import find  # noqa: E402

LOOPBACK_CANNOT = (
    "loopback: all nodes share this machine's address. A killed node refuses connections instead of falling silent, "
    "and cut-network and cut-controller are not possible."
)


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _interrupt)  # a terminated `up` tidies up as an interrupted one does
    try:
        arguments.do(arguments)
    except LabError as error:
        print(f"lab.py: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("lab.py: interrupted", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lab.py", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, do: Callable[[argparse.Namespace], None], words: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=words, description=words)
        sub.add_argument("--dir", help="the lab's directory (default: the only lab in /var/tmp)")
        sub.set_defaults(do=do)
        return sub

    up = command("up", _up, "make a lab and wait until every node is idle")
    up.add_argument("--nodes", type=int, default=4)
    up.add_argument("--loopback", action="store_true", help="without namespaces: less can be shown")
    up.add_argument("--full", action="store_true", help="with accounting, more users and more partitions")
    up.add_argument("--kill-wait", type=int, metavar="S", help="Slurm's KillWait (default: 30, Slurm's; --full: 5)")
    up.add_argument("--json", action="store_true", help="print lab.json on one line, last")
    up.add_argument("--keep", action="store_true", help="leave a lab that did not come up, to look at it")
    command("down", _down, "remove the lab and everything it made")
    status = command("status", _status, "what the lab is and how it does")
    status.add_argument("--json", action="store_true")
    _add_node_commands(command)
    _add_circumstances(command)
    command("cut-controller", lambda a: _lab(a).cut_controller(), "no node and the controller's host reach each other")
    command("restore-controller", lambda a: _lab(a).restore_controller(), "undo cut-controller")
    return parser


def _add_node_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    texts: dict[str, tuple[Callable[[argparse.Namespace], None], str]] = {
        "kill-node": (lambda a: print(_lab(a).kill_node(a.node)), "a dead host: no process left, addresses silent"),
        "kill-slurmd": (lambda a: _lab(a).kill_slurmd(a.node), "a living host whose slurmd is gone"),
        "cut-network": (lambda a: _lab(a).cut_network(a.node, a.link), "cables out; its processes live on"),
        "restore": (lambda a: _lab(a).restore(a.node), "cables in, slurmd started if it is gone"),
    }
    for name, (do, words) in texts.items():
        sub = command(name, do, words)
        sub.add_argument("node", help="name or number: gpu2 or 2")
        if name == "cut-network":
            sub.add_argument("--link", choices=("both", "management", "training"), default="both")


def _add_circumstances(command: Callable[..., argparse.ArgumentParser]) -> None:
    xid = command("xid", _xid, "the NVIDIA driver reports an error in a node's kernel log")
    xid.add_argument("node", help="name or number: gpu2 or 2")
    xid.add_argument("code", help="the Xid, for example 79")
    xid.add_argument("--gpu", type=int, default=0, help="which of the node's GPUs (default: 0)")
    xid.add_argument("--pid", type=int, help="the process that the line names (default: none)")
    sensor = command("sensor", _sensor, "the node sensor runs on a node, reading its kernel log")
    sensor.add_argument("node", help="name or number: gpu2 or 2")
    what = sensor.add_mutually_exclusive_group(required=True)
    what.add_argument("--stop", action="store_true", help="end it")
    what.add_argument("--url", help="the controller, as the nodes reach it")
    sensor.add_argument("--token-file", type=Path, help="the node's token, as `create_sensor_token` printed it")
    fill = command("fill", _fill, "another user's jobs wait for every node, from now on")
    fill.add_argument("--jobs", type=int, default=4, help="how many wait at any time (default: 4)")
    fill.add_argument("--seconds", type=int, default=20, help="how long each of them runs (default: 20)")
    fill.add_argument("--stop", action="store_true", help="no more, and cancel those that are there")
    kill_wait = command("kill-wait", _kill_wait, "change KillWait on the running lab")
    kill_wait.add_argument("seconds", type=_seconds_or_default, help="a number, or `default` for Slurm's own")
    settings = command("set", _set, "change lines of slurm.conf on the running lab")
    settings.add_argument("setting", nargs="+", type=_setting, help="NAME=VALUE; NAME= as it came up")


def _lab(arguments: argparse.Namespace) -> Lab:
    return Lab(find(arguments.dir))


def _up(arguments: argparse.Namespace) -> None:
    lab = Lab.up(
        Path(arguments.dir) if arguments.dir else None,
        nodes=arguments.nodes,
        loopback=arguments.loopback,
        full=arguments.full,
        kill_wait=arguments.kill_wait,
        keep=arguments.keep,
    )
    if arguments.loopback:
        print(LOOPBACK_CANNOT, file=sys.stderr)
    if arguments.json:
        print(json.dumps(lab.state.as_json()))
        return
    print(f"{lab.dir}: Slurm {lab.state.slurm_version}, nodes {' '.join(lab.names)} idle")
    print(f"  export SLURM_CONF={lab.conf}")
    if lab.state.full:
        print("  " + ", ".join(f"{role} {lab.users[role]}" for role in ("other", "operator", "administrator")))
    print(f"  jobs as {lab.users['owner']}, SlurmUser {lab.users['controller']}; nodes reach {lab.management_host}")


def _xid(arguments: argparse.Namespace) -> None:
    print(_lab(arguments).xid(arguments.node, arguments.code, gpu=arguments.gpu, pid=arguments.pid))


def _sensor(arguments: argparse.Namespace) -> None:
    if arguments.stop:
        _lab(arguments).stop_sensor(arguments.node)
        return
    if arguments.token_file is None:
        raise LabError("sensor --url needs --token-file")
    try:
        words = arguments.token_file.read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        raise LabError(f"{arguments.token_file}: {error}") from None
    if not words:
        raise LabError(f"{arguments.token_file}: no token in it")
    _lab(arguments).start_sensor(arguments.node, arguments.url, words[-1])


def _fill(arguments: argparse.Namespace) -> None:
    lab = _lab(arguments)
    if arguments.stop:
        lab.stop_filling()
    else:
        lab.fill(arguments.jobs, seconds=arguments.seconds)


def _kill_wait(arguments: argparse.Namespace) -> None:
    _lab(arguments).set_kill_wait(arguments.seconds)


def _seconds_or_default(text: str) -> int | None:
    if text == "default":
        return None
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of seconds nor `default`")
    return int(text)


def _set(arguments: argparse.Namespace) -> None:
    _lab(arguments).configure(**dict(arguments.setting))


def _setting(text: str) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value or None


def _down(arguments: argparse.Namespace) -> None:
    directory = find(arguments.dir)
    making.down(directory)
    print(f"{directory}: removed")


def _status(arguments: argparse.Namespace) -> None:
    status = _lab(arguments).status()
    if arguments.json:
        print(json.dumps(status))
        return
    live = status["live"]
    print(f"{status['dir']}: {status['phase']}, Slurm {status['slurm_version']}, {status['mode']}")
    print(f"  Slurm {'answers' if live['slurm_answers'] else 'does not answer'}; controller's network "
          f"{'up' if live['controller_up'] else 'cut'}")  # fmt: skip
    print("  " + ", ".join(f"{name} {'runs' if alive else 'is gone'}" for name, alive in live["daemons"].items()))
    for name, node in live["nodes"].items():
        cut = [link for link in ("management", "training") if not node[f"{link}_up"]]
        words = [node["slurm_state"], f"{node['processes']} processes", *(f"{link} cut" for link in cut)]
        print(f"  {name}: {', '.join(words)}{'' if node['slurmd'] else ', no slurmd'}")


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
