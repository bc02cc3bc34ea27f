"""The page of what is proved where: version x adapter x fact or action, made of what the tests leave behind.

`python -m tests.slurm.matrix` writes docs/slurm-matrix.md; `test_matrix.py` fails when the page is not what this gives,
or when a test that a row rests on does not exist. A cell is *live* when every test of its row passed on a running
cluster of that version through that adapter (`live/`, written by `live_record.py`), *recorded* when the version's
recordings are read by tests that name them, and empty when neither is so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from controller.slurm import unsupported

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "slurm-matrix.md"
LIVE = HERE / "live"
RECORDINGS = HERE / "recordings"
COMMANDS, PYSLURM = "cli", "pyslurm"
TITLES = {COMMANDS: "commands", PYSLURM: "pyslurm"}
# What reads recordings, by adapter: a module, and what a recorded version has for it.
READERS = {
    COMMANDS: ("test_recordings", "*.scontrol-nodes.txt"),
    PYSLURM: ("test_pyslurm_views", "*.pyslurm-nodes.json"),
}


@dataclass(frozen=True)
class Row:
    """`contract`: methods of `SlurmContract`. `recorded`: functions of the module that reads recordings, by adapter."""

    title: str
    contract: tuple[str, ...]
    recorded: tuple[str, ...] = ()
    recorded_pyslurm: tuple[str, ...] = ()

    def tests_on_recordings(self, adapter: str) -> tuple[str, ...]:
        return self.recorded if adapter == COMMANDS else self.recorded_pyslurm


_NODES = ("test_nodes_are_the_same_in_text_and_json",)
_JOBS = ("test_jobs_are_the_same_in_text_and_json",)

FACTS = (
    Row(
        "Nodes: state, flags, reason with author and time",
        ("test_a_quiet_cluster", "test_drain_keeps_the_job_and_resume_clears_it"),
        (*_NODES, "test_a_draining_node_with_its_reason", "test_lost_and_downed_nodes"),
        ("test_nodes_are_those_of_the_text",),
    ),
    Row(
        "Jobs: state, nodes, owner, restarts",
        ("test_a_running_job",),
        (*_JOBS, "test_requeued_then_restarted_elsewhere"),
        ("test_jobs_are_those_of_the_text",),
    ),
    Row(
        "Whose hold a held job has",
        ("test_whose_hold_it_is", "test_a_hold_over_a_requeue_hold_changes_nothing"),
        _JOBS,
        ("test_jobs_are_those_of_the_text",),
    ),
    Row(
        "Tasks of an array, components of a het job",
        ("test_array_tasks_are_requeued_and_excluded_singly",),
        (*_JOBS, "test_array_and_het_ids_are_slurms_spelling"),
        ("test_jobs_are_those_of_the_text",),
    ),
    Row(
        "How a job ended: exit code, signal",
        ("test_a_job_that_failed_can_be_requeued_as_long_as_slurm_remembers_it",),
        (*_JOBS, "test_failures_and_cancellations"),
        ("test_jobs_are_those_of_the_text",),
    ),
    Row("That Slurm does not know a job or a node", ("test_unknown_is_none_only_when_slurm_says_so",)),
    Row("Partitions; that there is no accounting", ("test_partitions_and_no_accounting",)),
    Row("Version, cluster, configuration", ("test_a_quiet_cluster",), ("test_config_names_cluster_and_version",)),
)

ACTIONS = (
    Row("Drain, resume", ("test_drain_keeps_the_job_and_resume_clears_it", "test_a_second_reason_replaces_the_first",
        "test_nodes_refused")),
    Row("Down", ("test_down_requeues_ours_and_kills_the_neighbour", "test_a_drain_outlives_the_return_of_the_node")),
    Row("Reserve nodes, give them back", ("test_nodes_reserved_for_the_owner_and_given_back",
        "test_reservations_refused")),
    Row("Requeue", ("test_requeue_is_not_idempotent", "test_a_lost_answer_may_still_take_effect",
        "test_requeue_refused", "test_a_job_that_failed_can_be_requeued_as_long_as_slurm_remembers_it")),
    Row("Exclude nodes, start now", ("test_requeue_with_exclusion", "test_exclusion_refused",
        "test_excluding_too_many_and_fewer_again", "test_start_now_while_completing_is_overwritten")),
    Row("Hold, release", ("test_whose_hold_it_is", "test_a_hold_over_a_requeue_hold_changes_nothing")),
    Row("One task of an array at a time", ("test_array_tasks_are_requeued_and_excluded_singly",)),
    Row("Cancel, signal, comment", ("test_cancel_and_comment",)),
)  # fmt: skip


@dataclass(frozen=True)
class Column:
    """One version through one adapter. `passed`: the contract's tests that passed live, parameters taken off."""

    release: str
    adapter: str
    version: str = ""
    date: str = ""
    passed: frozenset[str] = frozenset()

    @property
    def recorded(self) -> bool:
        return any((RECORDINGS / self.release).glob(READERS[self.adapter][1]))

    def cell(self, row: Row) -> str:
        if set(row.contract) <= self.passed:
            return "**live**"
        if row.tests_on_recordings(self.adapter) and self.recorded:
            return "recorded"
        return ""


def columns() -> list[Column]:
    """Every version that was recorded or tried, with each adapter that has anything to show for it."""
    live = {(column.release, column.adapter): column for column in _lived()}
    releases = sorted({path.name for path in RECORDINGS.iterdir() if path.is_dir()} | {release for release, _ in live})
    wanted = [live.get((release, adapter), Column(release, adapter)) for release in releases for adapter in TITLES]
    return [column for column in wanted if column.passed or column.recorded]


def _lived() -> Iterator[Column]:
    for path in sorted(LIVE.glob("*.json")):
        said = json.loads(path.read_text())
        failed = {name.partition("[")[0] for name in said["failed"]}
        passed = frozenset(name.partition("[")[0] for name in said["passed"]) - failed
        release = ".".join(said["version"].split(".")[:2])
        yield Column(release, said["adapter"], said["version"], said["date"], passed)


def page() -> str:
    """The whole page as Markdown."""
    shown = columns()
    return "\n".join(
        [
            "# What is proved on which Slurm",
            "",
            "Made by `python -m tests.slurm.matrix`; a test fails when this page is not what the tests show.",
            "",
            "- **live**: every test of the row passed on a running cluster of that version, through that adapter.",
            "- recorded: tests read what that version printed, and find the same facts as in every other version.",
            "- empty: not tried. It may work; nobody has seen it.",
            "",
            "pyslurm X.Y is built against Slurm X.Y only, so it is tried where such a pair exists "
            "([pyslurm.md](pyslurm.md)).",
            "",
            *_table("Fact", FACTS, shown),
            "",
            *_table("Action", ACTIONS, shown),
            "",
            "## When it was live",
            "",
            "| Slurm | adapter | date | tests of the contract |",
            "|---|---|---|---|",
            *[f"| {c.version} | {TITLES[c.adapter]} | {c.date} | {len(c.passed)} |" for c in shown if c.passed],
            "",
            "## Not supported",
            "",
            "Jobs on these are watched and never acted upon. The sentence is what the job's page, the incident and "
            "`manage.py check_slurm` say.",
            "",
            "| what | what a user sees |",
            "|---|---|",
            *[f"| {name} | {unsupported.refusal(name)} |" for name in unsupported.WHY],
            "",
        ]
    )


def _table(title: str, rows: tuple[Row, ...], shown: list[Column]) -> list[str]:
    heads = [f"{column.release} {TITLES[column.adapter]}" for column in shown]
    lines = [f"| {title} | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    return lines + [f"| {row.title} | {' | '.join(column.cell(row) for column in shown)} |" for row in rows]


if __name__ == "__main__":
    PAGE.write_text(page())
    print(PAGE)
