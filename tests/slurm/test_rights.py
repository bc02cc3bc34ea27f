"""What the identities may do, told from what Slurm and sudo say (texts as tried on 22.05 and 25.11)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from controller.decision import rights
from controller.decision.rights import NO, SOME, UNKNOWN, YES
from controller.errors import SlurmUnavailable
from controller.slurm import run_as, site_facts, unsupported
from controller.slurm.calls import TimeLimits
from controller.slurm.rights import Identities, Identity, find_out
from controller.slurm.runner import Completed, Runner
from tests.cluster.test_rights_real import MEASURED
from tests.slurm.scripted import CONFIG, NODE, ScriptedRunner, said

pytestmark = pytest.mark.pure

PAGE = Path(__file__).resolve().parents[2] / "docs" / "admin-rights.md"
AT = datetime.fromtimestamp(1795970000.4, UTC)
SITE = CONFIG + "SlurmUser = slurm(64030)\nKillWait = 30 sec\nMinJobAge = 300 sec\n"
ACCOUNTING = SITE + "AccountingStorageType = accounting_storage/slurmdbd\n"

NO_USER = "slurm_update error: Invalid user id\n"
NO_NODE = "slurm_update error: Invalid node name specified\n"
NOT_YOURS = "delete_reservation ReservationName=x: Invalid user id\n"
NO_RESERVATION = "delete_reservation ReservationName=x: Requested reservation is invalid\n"
SUDO = "sudo: a password is required\n"

# Keys are looked for in this order; the first that occurs in the command answers.
QUIET: dict[str, Completed | OSError] = {
    "show federation": said(""),
    "sacctmgr show configuration": said("SlurmDBD configuration:\nPrivateData            = none\n"),
    "sacctmgr --noheader": said("relume|None|\n"),
    "sacct ": said(""),
    "show config": said(ACCOUNTING),
    "show nodes": said(NODE),
    "squeue": said("7\n8\n"),
    "update NodeName": said(err=NO_USER, rc=1),
    "delete ReservationName": said(err=NOT_YOURS, rc=1),
}


def runner(**answers: Completed | OSError) -> ScriptedRunner:
    """The quiet world is an ordinary user on a cluster with accounting; name what differs, `_` for a blank."""
    named = {key.replace("_", " "): answer for key, answer in answers.items()}
    return ScriptedRunner({**named, **{key: answer for key, answer in QUIET.items() if key not in named}})


def find(reader: ScriptedRunner, *, through: str = "", user: str = "relume") -> dict[str, Any]:
    prefix = run_as.parse(through) if through else None
    me = Identity(user, cast(Runner, reader))
    writer = Identity(prefix.user, _Prefixed(env={}, run_as=prefix.argv, answers=reader), prefix) if prefix else me
    return find_out(Identities(user, me, writer, writer), TimeLimits(8, 5, 8), lambda: AT)


@dataclass(frozen=True)
class _Prefixed(Runner):
    """A real runner whose command goes to the prepared answers, prefix and all."""

    answers: ScriptedRunner = field(default_factory=lambda: ScriptedRunner({}))

    def run(self, argv: Sequence[str], timeout: float) -> Completed:
        return self.answers.run(self._command(argv), timeout)


def may(found: dict[str, Any]) -> dict[str, str]:
    return {name: one["may"] for name, one in found["capabilities"].items()}


def test_an_ordinary_user_reads_and_changes_nothing_of_others() -> None:
    found = find(runner())
    assert may(found) == {
        rights.READ_NODES: YES,
        rights.READ_JOBS: YES,
        rights.READ_ACCOUNTING: YES,
        rights.UPDATE_NODES: NO,
        rights.JOBS_OF_OTHERS: NO,
        rights.RESERVE: NO,
    }
    nodes = found["capabilities"][rights.UPDATE_NODES]
    assert nodes["who"] == "relume" and "Invalid user id" in nodes["proof"] and "not drained" in nodes["without"]
    assert nodes["grant"] == "sacctmgr -i modify user where name=relume set AdminLevel=Administrator"
    assert found["capabilities"][rights.RESERVE]["grant"].endswith("AdminLevel=Operator")


def test_an_operator_lacks_node_updates_only() -> None:
    found = may(find(runner(delete_ReservationName=said(err=NO_RESERVATION, rc=1))))
    assert [name for name in found if found[name] != YES] == [rights.UPDATE_NODES]


def test_an_administrator_lacks_nothing() -> None:
    all_there = runner(delete_ReservationName=said(err=NO_RESERVATION, rc=1), update_NodeName=said(err=NO_NODE, rc=1))
    assert set(may(find(all_there)).values()) == {YES}


def test_nothing_that_exists_is_ever_named() -> None:
    reader = runner(update_NodeName=said(err=NO_NODE, rc=1), delete_ReservationName=said(err=NO_RESERVATION, rc=1))
    find(reader)
    changing = [argv for argv in reader.asked if {"update", "delete", "create", "requeuehold", "hold"} & set(argv)]
    assert len(changing) == 2
    assert all("=relume-probe-" in argv[2] for argv in changing)


@pytest.mark.parametrize("words", ["Slurm database is on fire", "Invalid node state specified"])
def test_words_that_nobody_knows_are_no_answer_and_are_kept(words: str) -> None:
    found = find(runner(update_NodeName=said(err=words, rc=1)))
    nodes = found["capabilities"][rights.UPDATE_NODES]
    assert nodes["may"] == UNKNOWN and words in nodes["proof"]


def test_an_update_of_nothing_that_is_not_refused_proves_nothing() -> None:
    assert may(find(runner(update_NodeName=said(""))))[rights.UPDATE_NODES] == UNKNOWN


def test_slurm_away_is_an_error_and_no_finding() -> None:
    away = said(err="slurm_load_ctl_conf error: Unable to contact slurm controller (connect failure)", rc=1)
    with pytest.raises(SlurmUnavailable):
        find(runner(show_config=away))
    with pytest.raises(SlurmUnavailable):
        find(runner(update_NodeName=said(rc=None, timed_out=True)))


def test_a_coordinator_has_the_jobs_of_his_accounts() -> None:
    found = find(runner(**{"sacctmgr_--noheader": said("relume|None|vision,speech\n")}))
    jobs = found["capabilities"][rights.JOBS_OF_OTHERS]
    assert jobs["may"] == SOME and "vision, speech" in jobs["proof"]
    assert found["capabilities"][rights.RESERVE]["may"] == NO


def test_who_is_not_in_the_database_is_added_to_it() -> None:
    found = find(runner(**{"sacctmgr_--noheader": said("")}))
    grant = found["capabilities"][rights.UPDATE_NODES]["grant"]
    assert grant == "sacctmgr -i add user name=relume account=root AdminLevel=Administrator"


def test_without_accounting_there_are_no_levels_to_grant() -> None:
    found = find(runner(show_config=said(SITE)))
    assert found["capabilities"][rights.READ_ACCOUNTING]["may"] == NO
    assert found["capabilities"][rights.READ_ACCOUNTING]["grant"] == ""
    grant = found["capabilities"][rights.UPDATE_NODES]["grant"]
    assert grant.startswith("relume ALL=(slurm) NOPASSWD: ") and "sacctmgr" not in grant
    assert grant.endswith('SLURM_NODE_RUN_AS="sudo -n -u slurm"')


@pytest.mark.parametrize("hidden", ["jobs", "partitions", "usage,jobs"])
def test_private_jobs_are_seen_by_operators_only(hidden: str) -> None:
    private = said(ACCOUNTING.replace("PrivateData = none", f"PrivateData = {hidden}"))
    assert may(find(runner(show_config=private)))[rights.READ_JOBS] == NO
    operator = runner(show_config=private, delete_ReservationName=said(err=NO_RESERVATION, rc=1))
    assert may(find(operator))[rights.READ_JOBS] == YES
    coordinator = runner(show_config=private, **{"sacctmgr_--noheader": said("relume|None|vision\n")})
    assert may(find(coordinator))[rights.READ_JOBS] == SOME


def test_other_private_data_hides_no_job() -> None:
    private = said(ACCOUNTING.replace("PrivateData = none", "PrivateData = usage,users"))
    assert may(find(runner(show_config=private)))[rights.READ_JOBS] == YES


def test_what_is_refused_to_a_reader_is_told() -> None:
    denied = {
        "show_nodes": said(err="slurm_load_node error: Access/permission denied", rc=1),
        "squeue": said(err="slurm_load_partitions: Access/permission denied", rc=1),
    }
    found = may(find(runner(**denied)))
    assert (found[rights.READ_NODES], found[rights.READ_JOBS]) == (NO, NO)


def test_the_database_has_private_data_of_its_own() -> None:
    private = said("PrivateData = none\nSlurmDBD configuration:\nPrivateData            = jobs,usage\n")
    assert may(find(runner(sacctmgr_show_configuration=private)))[rights.READ_ACCOUNTING] == NO
    operator = runner(sacctmgr_show_configuration=private, **{"sacctmgr_--noheader": said("relume|Operator|\n")})
    assert may(find(operator))[rights.READ_ACCOUNTING] == YES


def test_a_database_that_hangs_is_waited_for_once() -> None:
    reader = runner(**{"sacct_": said(rc=None, timed_out=True)})
    found = find(reader)
    assert found["capabilities"][rights.READ_ACCOUNTING]["may"] == UNKNOWN
    assert not [argv for argv in reader.asked if argv[0] == "sacctmgr"]
    assert found["capabilities"][rights.UPDATE_NODES]["may"] == NO, "slurmctld answers all the same"


# sudo


def test_what_sudo_keeps_from_slurm_is_missing_and_sudo_grants_it() -> None:
    kept = runner(update_NodeName=said(err=SUDO, rc=1), delete_ReservationName=said(err=SUDO, rc=1))
    kept.answers = {"sudo -n -l": said(rc=1), **kept.answers}
    found = find(kept, through="sudo -n -u slurm")
    assert {may(found)[name] for name in (rights.UPDATE_NODES, rights.JOBS_OF_OTHERS, rights.RESERVE)} == {NO}
    assert found["capabilities"][rights.UPDATE_NODES]["grant"].startswith("relume ALL=(slurm) NOPASSWD: ")
    assert found["identities"]["nodes"] == {"user": "slurm", "through": "sudo -n -u slurm"}


def test_a_drain_that_passes_sudo_is_not_enough_when_down_does_not() -> None:
    half = runner(update_NodeName=said(err=NO_NODE, rc=1), delete_ReservationName=said(err=NO_RESERVATION, rc=1))
    half.answers = {"sudo -n -l -u slurm scontrol update NodeName=x State=DOWN": said(rc=1), **half.answers}
    half.answers = {**half.answers, "sudo -n -l": said("/usr/bin/scontrol ...")}
    found = find(half, through="sudo -n -u slurm")
    assert may(found)[rights.UPDATE_NODES] == NO
    assert "State=DOWN" in found["capabilities"][rights.UPDATE_NODES]["proof"]


def test_sudo_may_let_jobs_through_and_no_reservation() -> None:
    jobs = runner(delete_ReservationName=said(err=SUDO, rc=1))
    jobs.answers = {"sudo -n -l": said("/usr/bin/scontrol ..."), **jobs.answers}
    found = may(find(jobs, through="sudo -n -u slurm"))
    assert (found[rights.JOBS_OF_OTHERS], found[rights.RESERVE]) == (YES, NO), "SlurmUser is the target"
    assert may(find(jobs, through="sudo -n -u ada"))[rights.JOBS_OF_OTHERS] == NO, "ada has no level"


# the site's settings


@pytest.mark.parametrize(
    ("setting", "bad"),
    [
        ("MinJobAge = 2 sec", True),
        ("MinJobAge = 0 sec", False),
        ("SlurmdTimeout = 0 sec", True),
        ("SlurmdTimeout = 300 sec", False),
        ("ReturnToService = 3", True),
        ("JobRequeue = 0", False),
        ("MaxBatchRequeue = 5", False),
        ("MessageTimeout = 100 sec", False),
    ],
)
def test_settings_are_told_with_what_they_mean(setting: str, bad: bool) -> None:
    name, _, value = setting.partition(" = ")
    (fact,) = site_facts.facts({name: value}, 8.0)
    assert (fact["name"], fact["value"], fact["ok"]) == (name, value, not bad) and fact["note"]


@pytest.mark.parametrize(
    ("told", "ok"), [(1000, True), (999, True), (1003, True), (1100, False), (800, False), (1010, True)]
)
def test_clocks(told: int, ok: bool) -> None:
    fact = site_facts.clock_skew(f"Configuration data as of {told}\n", 1000.3, 1000.4)
    assert fact is not None and fact["ok"] is ok
    assert ("agree" in fact["note"]) == (abs(told - 1000) < 5)
    assert site_facts.clock_skew("nothing", 1.0, 2.0) is None


# what decisions ask of it


def test_may_and_refusals() -> None:
    found = find(runner(**{"sacctmgr_--noheader": said("relume|None|vision\n")}))
    assert rights.may(found, rights.UPDATE_NODES) is False
    assert rights.may(found, rights.READ_NODES) is True
    assert rights.may(found, rights.JOBS_OF_OTHERS) is None, "only some: tried"
    assert rights.may({}, rights.RESERVE) is None
    assert rights.may({"capabilities": {"reserve": None}}, rights.RESERVE) is None
    later = rights.refused(found, rights.JOBS_OF_OTHERS, "Access denied", 5.0)
    assert rights.may(later, rights.JOBS_OF_OTHERS) is None, "one refusal does not take the others' jobs away"
    later = rights.refused(later, rights.RESERVE, "Access denied", 5.0)
    assert rights.may(later, rights.RESERVE) is False and rights.may(found, rights.READ_NODES) is True
    assert rights.may(rights.refused({}, rights.RESERVE, "no", 5.0), rights.RESERVE) is False


def test_the_page_for_administrators_has_the_table_that_the_lab_measures() -> None:
    rows = [line.split("|") for line in PAGE.read_text().splitlines() if line.startswith("|")]
    told = {row[1].strip(): [cell.strip() for cell in row[2:5]] for row in rows}
    names = {"other": "an ordinary user", "controller": "SlurmUser", "root": "root"}
    names |= {"operator": "AdminLevel=Operator", "administrator": "AdminLevel=Administrator"}
    columns = (rights.UPDATE_NODES, rights.JOBS_OF_OTHERS, rights.RESERVE)
    assert {told_as: told[told_as] for told_as in names.values()} == {
        told_as: [MEASURED[role][column] for column in columns] for role, told_as in names.items()
    }
    assert all(name in told for name in unsupported.WHY)
    assert all(f"`{name}`" in PAGE.read_text() for name in rights.CAPABILITIES)
