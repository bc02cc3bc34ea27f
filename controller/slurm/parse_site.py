"""`scontrol -o show config|partitions|reservations` read as text. All of it is written by administrators; only a
reservation's name and comment hold blanks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, tzinfo

from controller.errors import SlurmUnreadable
from controller.slurm import durations, records, versions
from controller.slurm.building import moment, names, number, present, words
from controller.slurm.views import ClusterView, JobView, NodeView, PartitionView, ReservationView

_CONFIG_LINE = re.compile(r"^([A-Za-z_]\w*(?:\[\d+\])?)\s+= ?(.*?)\s*$")
_RESERVATION = re.compile(
    r"ReservationName=(?P<name>.+?) (?=StartTime=\S+ EndTime=)(?P<plain>.*?)(?:\sComment=(?P<comment>.*))?", re.DOTALL
)


def parse_config(text: str) -> dict[str, str]:
    """`scontrol show config`. SlurmUnreadable when it does not even name the cluster."""
    lines = (_CONFIG_LINE.match(line) for line in text.splitlines())
    config = {found.group(1): found.group(2) for found in lines if found}
    if "ClusterName" not in config or "SLURM_VERSION" not in config:
        raise SlurmUnreadable("Slurm's configuration lacks ClusterName or SLURM_VERSION", text=text[:2000])
    return config


def cluster_view(
    config: Mapping[str, str],
    nodes: Iterable[NodeView],
    jobs: Iterable[JobView],
    *,
    partitions: Mapping[str, PartitionView],
    reservations: Mapping[str, ReservationView],
    nodes_at: datetime,
    jobs_at: datetime,
) -> ClusterView:
    """One batched read as a whole, whichever adapter read its parts. `config`: as `parse_config` gives it."""
    return ClusterView(
        cluster=config["ClusterName"],
        version=versions.parse(config["SLURM_VERSION"]),
        nodes={node.name: node for node in nodes},
        jobs={job.job_id: job for job in jobs},
        nodes_at=nodes_at,
        jobs_at=jobs_at,
        next_job_id=number(config.get("NEXT_JOB_ID")) or None,
        controller_boot_time=moment(config.get("BOOT_TIME")),
        private_data=tuple(word for word in present(config.get("PrivateData")).split(",") if word),
        partitions=partitions,
        reservations=reservations,
        config=config,
    )


def parse_partitions(text: str) -> dict[str, PartitionView]:
    """By name, in Slurm's order. SlurmUnreadable when `text` is not partition records."""
    views: dict[str, PartitionView] = {}
    for record in records.split(text, "PartitionName", "No partitions in the system"):
        with records.reading(record):
            view = _partition_view(record)
        views[view.name] = view
    return views


def parse_reservations(text: str, zone: tzinfo | None = None) -> dict[str, ReservationView]:
    """By name, in Slurm's order. SlurmUnreadable when `text` is not reservation records."""
    views: dict[str, ReservationView] = {}
    for record in records.split(text, "ReservationName", "No reservations in the system"):
        with records.reading(record):
            view = _reservation_view(record, zone)
        views[view.name] = view
    return views


def _partition_view(record: str) -> PartitionView:
    known = records.plain_fields(record)
    take = known.pop
    max_nodes = take("MaxNodes", "UNLIMITED")
    return PartitionView(
        name=take("PartitionName"),
        state=take("State").upper(),
        nodes=names(take("Nodes", "")),
        hidden=take("Hidden") == "YES",
        max_nodes=int(max_nodes) if max_nodes.isdecimal() else None,
        max_time=durations.parse(take("MaxTime", "")),
        preempt_mode=take("PreemptMode", ""),
        priority_tier=number(known.pop("PriorityTier")) if "PriorityTier" in known else None,
        extra=known,
    )


def _reservation_view(record: str, zone: tzinfo | None) -> ReservationView:
    found = _RESERVATION.fullmatch(record)
    if not found:
        raise ValueError("no StartTime after the reservation's name")
    known = records.plain_fields(found["plain"])
    take = known.pop
    comment = {"Comment": found["comment"].strip()} if found["comment"] else {}
    return ReservationView(
        name=found["name"],
        nodes=names(take("Nodes")),
        users=words(take("Users", "")),
        accounts=words(take("Accounts", "")),
        partition=present(take("PartitionName", "")),
        features=present(take("Features", "")),
        flags=frozenset(words(take("Flags", ""))),
        active=take("State") == "ACTIVE",
        start_time=moment(take("StartTime"), zone),
        end_time=moment(take("EndTime"), zone),
        extra=known | comment,
    )
