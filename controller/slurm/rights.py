"""Finds out what each of the controller's identities may do in Slurm, without making anything, even for a moment.

Slurm looks at the right before it looks at the name (tried on 22.05 and 25.11; docs/admin-rights.md): the update of a
node and the deletion of a reservation that do not exist are answered "Invalid user id" without the right and "invalid
name" with it. Jobs of others need the same level as reservations, or a coordinator's; slurmctld would look for the job
first, so no job is ever named. Killed at any moment, this leaves nothing behind but lines in slurmctld's log.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from controller.decision import rights
from controller.errors import RefusalKind, SlurmError, SlurmRefused, SlurmUnavailable
from controller.slurm import grants, parse, parse_site, site_facts, unsupported
from controller.slurm.building import present, words
from controller.slurm.calls import TimeLimits, checked_output, completed
from controller.slurm.run_as import RunAs
from controller.slurm.runner import Runner
from controller.slurm.views import NodeView

SHOW = ("scontrol", "--all", "--local", "--oneliner", "show")
# What Relume does without it.
WITHOUT = {
    rights.READ_NODES: "nothing can be decided",
    rights.READ_JOBS: "a job that is not shown is unknown: neither lost nor ended",
    rights.READ_ACCOUNTING: "a job that has left slurmctld is unknown",
    rights.UPDATE_NODES: "a bad node is kept from the job that it hit, not drained: other jobs may start there",
    rights.JOBS_OF_OTHERS: "their owners are told the verdict and the commands; nothing is requeued",
    rights.RESERVE: "a requeued job waits in the queue for its nodes instead of finding them kept",
}


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom Slurm sees: `runner` becomes `user`, through `run_as` where that is set."""

    user: str
    runner: Runner
    run_as: RunAs | None = None


@dataclass(frozen=True, slots=True)
class Identities:
    """`login`: the user that the controller itself runs as."""

    login: str
    reader: Identity
    jobs: Identity
    nodes: Identity


@dataclass(frozen=True, slots=True)
class Account:
    """What Slurm's database says of one user. `known` is None where it cannot be asked."""

    known: bool | None = None
    level: str = ""
    coordinates: tuple[str, ...] = ()

    @property
    def operates(self) -> bool:
        return self.level in (grants.OPERATOR, grants.ADMINISTRATOR)


@dataclass(frozen=True, slots=True)
class Found:
    """One capability of one identity, and the proof in Slurm's own words."""

    may: str
    proof: str


@dataclass(slots=True)
class Look:
    """One run. Everything is asked with a time limit; what cannot be told is `unknown`, with the words that came."""

    who: Identities
    limits: TimeLimits
    clock: Callable[[], datetime]
    config: Mapping[str, str] = field(default_factory=dict)
    accounts: dict[str, Account] = field(default_factory=dict)
    database_answers: bool = True  # a slurmdbd that hangs is waited for once

    # what is asked

    def ask(self, identity: Identity, *argv: str, limit: float | None = None) -> str:
        done = completed(identity.runner, argv, limit or self.limits.read, write=False)
        return checked_output(done, " ".join(argv), write=False)

    def account(self, user: str) -> Account:
        if user not in self.accounts:
            self.accounts[user] = self._account(user)
        return self.accounts[user]

    def _account(self, user: str) -> Account:
        if not grants.keeps_accounting(self.config) or not self.database_answers:
            return Account()
        argv = ("sacctmgr", "--noheader", "--parsable2", "show", "user", f"name={user}", "withcoord")
        try:
            line = self.ask(self.who.reader, *argv, "format=User,AdminLevel,Coordinators").strip()
        except SlurmError as error:
            self.database_answers = not isinstance(error, SlurmUnavailable)
            return Account()
        if not line:
            return Account(known=False)
        _, level, coordinates = (*line.splitlines()[0].split("|"), "", "")[:3]
        return Account(True, level, words(coordinates))

    def level(self, identity: Identity) -> Found:
        """Operator or more? Asked of slurmctld itself."""
        name = f"ReservationName=relume-probe-{secrets.token_hex(6)}"
        return self._refused_for(identity, RefusalKind.INVALID_RESERVATION, "scontrol", "delete", name)

    def _refused_for(self, identity: Identity, passed: RefusalKind, *argv: str) -> Found:
        """`argv` names a thing that does not exist: refused as `passed` by whom the right was there."""
        done = completed(identity.runner, argv, self.limits.write, write=False)
        try:
            checked_output(done, " ".join(argv[:2]), write=False)
        except SlurmRefused as refused:
            said = f"{' '.join(argv[:2])} of nothing, as {identity.user}: {_said(refused)}"
            may = {passed: rights.YES, RefusalKind.NOT_PERMITTED: rights.NO}
            return Found(may.get(refused.kind, rights.UNKNOWN), said)
        return Found(rights.UNKNOWN, f"{' '.join(argv)} was not refused")

    # capabilities

    def read_nodes(self) -> tuple[Found, list[NodeView]]:
        try:
            text = self.ask(self.who.reader, *SHOW, "nodes", limit=self.limits.batch)
        except SlurmRefused as refused:
            return Found(_no_or_unknown(refused), _said(refused)), []
        nodes = list(parse.parse_nodes(text).values())
        return Found(rights.YES, f"{len(nodes)} nodes were shown"), nodes

    def read_jobs(self) -> Found:
        """Slurm hides silently: what PrivateData names is shown to an Operator only, and nobody is told."""
        try:
            argv = ("squeue", "--all", "--local", "--noheader", "--states=all", "--format=%A")
            shown = len(self.ask(self.who.reader, *argv, limit=self.limits.batch).split())
        except SlurmRefused as refused:
            return Found(_no_or_unknown(refused), _said(refused))
        hidden = [word for word in words(present(self.config.get("PrivateData"))) if word in ("jobs", "partitions")]
        if not hidden:
            return Found(rights.YES, f"nothing is private; {shown} jobs were shown")
        level = self.level(self.who.reader)
        told = f"PrivateData={','.join(hidden)}; {level.proof}"
        account = self.account(self.who.reader.user)
        if level.may == rights.NO and account.coordinates:
            return Found(rights.SOME, f"{told}; jobs of the accounts {', '.join(account.coordinates)} are shown")
        return Found(level.may, told)

    def read_accounting(self) -> Found:
        if not grants.keeps_accounting(self.config):
            return Found(
                rights.NO, f"AccountingStorageType={self.config.get('AccountingStorageType', '')}: none is kept"
            )
        try:
            argv = ("sacct", "--noheader", "--parsable2", "--allocations", "--starttime=now", "--format=JobIDRaw")
            self.ask(self.who.reader, *argv)
            private = self._private_in_database()
        except SlurmError as error:
            self.database_answers = not isinstance(error, SlurmUnavailable)
            return Found(rights.UNKNOWN, _said(error))
        if "jobs" not in private or self._operates(self.who.reader):
            return Found(rights.YES, "slurmdbd answers for everybody's jobs")
        return Found(rights.NO, f"slurmdbd answers, but PrivateData={','.join(private)} there hides the jobs of others")

    def _private_in_database(self) -> tuple[str, ...]:
        text = self.ask(self.who.reader, "sacctmgr", "show", "configuration")
        _, _, database = text.partition("SlurmDBD configuration")
        lines = [line.partition("=") for line in database.splitlines()]
        return next((words(present(value)) for key, _, value in lines if key.strip() == "PrivateData"), ())

    def _operates(self, identity: Identity) -> bool:
        account = self.account(identity.user)
        return account.operates or identity.user in ("root", grants.slurm_user(self.config))

    def update_nodes(self, names: set[str]) -> Found:
        identity, name = self.who.nodes, f"relume-probe-{secrets.token_hex(6)}"
        assert name not in names
        argv = ("scontrol", "update", f"NodeName={name}")
        found = self._refused_for(
            identity, RefusalKind.BAD_NODES, *argv, "State=DRAIN", "Reason=relume: does it exist?"
        )
        if found.may != rights.YES:
            return found
        wanted = (
            ("scontrol", "update", "NodeName=x", "State=DOWN", "Reason=x"),
            (*argv[:2], "NodeName=x", "State=RESUME"),
        )
        return self._through_sudo(identity, wanted) or found

    def jobs_of_others(self, level: Found) -> Found:
        """`level`: what the same identity was told about reservations; sudo may have kept that call from Slurm."""
        identity = self.who.jobs
        account = self.account(identity.user)
        by_name = identity.run_as is not None and identity.run_as.sudo and level.may != rights.YES
        if by_name and self._operates(identity):
            level = Found(rights.YES, f"{identity.user} is SlurmUser, root, or an {account.level or 'Operator'}")
        if level.may == rights.YES:
            shapes = tuple(("scontrol", word, "1") for word in ("requeuehold", "hold", "release"))
            exclude = ("scontrol", "update", "JobId=1", "ExcNodeList=x")
            return self._through_sudo(identity, (*shapes, exclude)) or level
        if account.coordinates:
            names = ", ".join(account.coordinates)
            return Found(rights.SOME, f"{identity.user} coordinates the accounts {names}: jobs of these only")
        return level

    def _through_sudo(self, identity: Identity, wanted: tuple[tuple[str, ...], ...]) -> Found | None:
        """None when sudo, where it is used, lets every wanted command through: asked, not run."""
        if identity.run_as is None or not identity.run_as.sudo:
            return None
        sudo, no_password, *user = identity.run_as.argv
        asker = replace(identity.runner, run_as=())
        for argv in wanted:
            done = completed(asker, (sudo, no_password, "-l", *user, *argv), self.limits.read, write=False)
            if done.rc != 0:
                return Found(rights.NO, f"sudo does not let {self.who.login} run: {' '.join(argv)}")
        return None


def find_out(
    who: Identities, limits: TimeLimits, clock: Callable[[], datetime], *, own_conf: bool = False
) -> dict[str, Any]:
    """Builtins for `Cluster.rights`. Raises SlurmError when Slurm does not answer at all.

    `own_conf`: SLURM_CONF is set and must get through sudo.
    """
    look = Look(who, limits, clock)
    asked_at = clock().timestamp()
    text = look.ask(who.reader, *SHOW, "config")
    answered_at = clock().timestamp()
    look.config = parse_site.parse_config(text)
    nodes_found, nodes = look.read_nodes()
    accounting = look.read_accounting()  # first: it tells whether the database answers
    level = look.level(who.jobs)
    found = {
        rights.READ_NODES: (who.reader, nodes_found),
        rights.READ_JOBS: (who.reader, look.read_jobs()),
        rights.READ_ACCOUNTING: (who.reader, accounting),
        rights.UPDATE_NODES: (who.nodes, look.update_nodes({node.name for node in nodes})),
        rights.JOBS_OF_OTHERS: (who.jobs, look.jobs_of_others(level)),
        rights.RESERVE: (who.jobs, level),
    }
    skew = site_facts.clock_skew(text, asked_at, answered_at)
    return {
        "at": answered_at,
        "cluster": look.config["ClusterName"],
        "slurm_version": look.config["SLURM_VERSION"],
        "identities": {role: _identity(getattr(who, role)) for role in ("reader", "jobs", "nodes")},
        "capabilities": {name: _told(look, name, *pair, own_conf) for name, pair in found.items()},
        "facts": [*([skew] if skew else []), *site_facts.facts(look.config, limits.write)],
        "unsupported": list(unsupported.of_cluster(look.config, nodes, _federation(look))),
    }


def _told(look: Look, name: str, identity: Identity, found: Found, own_conf: bool) -> dict[str, Any]:
    told: dict[str, Any] = {"may": found.may, "who": identity.user, "proof": found.proof}
    if found.may == rights.YES:
        return told
    asker = grants.Asker(
        user=identity.user,
        login=look.who.login,
        account_known=look.account(identity.user).known,
        scontrol=shutil.which("scontrol") or "/usr/bin/scontrol",
        own_conf=own_conf,
        through_sudo=identity.run_as is not None and identity.run_as.sudo,
    )
    ways = grants.lines(name, asker, look.config)
    return {**told, "without": WITHOUT[name], "grant": next(iter(ways), ""), "or": list(ways[1:])}


def _identity(identity: Identity) -> dict[str, str]:
    return {"user": identity.user, "through": " ".join(identity.run_as.argv) if identity.run_as else ""}


def _federation(look: Look) -> str:
    try:
        return look.ask(look.who.reader, "scontrol", "show", "federation")
    except SlurmRefused:
        return ""


def _said(error: SlurmError) -> str:
    """The line that tells, out of what was printed."""
    lines = [line.strip() for line in error.text.splitlines() if line.strip()]
    return lines[0] if lines else str(error)


def _no_or_unknown(refused: SlurmRefused) -> str:
    return rights.NO if refused.kind is RefusalKind.NOT_PERMITTED else rights.UNKNOWN
