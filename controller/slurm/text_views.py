"""The attributes of one record, by the names that scontrol gives them, as the port's values: whatever text they came
from, the same attributes give the same view."""

from __future__ import annotations

from datetime import timedelta, tzinfo
from functools import partial

from controller.slurm import durations, reasons, states
from controller.slurm.building import NO_VALUES, job_id, moment, names, number, present, tres_per_node, words
from controller.slurm.views import JobView, NodeView


def _taken(known: dict[str, str], key: str) -> str | None:
    return known.pop(key, None)


def _optional_number(text: str | None) -> int | None:
    return None if text is None else int(text)


def job_view(known: dict[str, str], zone: tzinfo | None) -> JobView:
    """Takes what it names out of `known`; what is left goes to `extra`."""
    take, get = known.pop, partial(_taken, known)
    task_text = present(get("task"))
    task_text = "" if task_text in NO_VALUES else task_text
    task = int(task_text) if task_text.isdecimal() else None
    tasks = "" if task is not None else task_text
    array, het = _optional_number(get("array")), _optional_number(get("het"))
    het_offset = _optional_number(get("offset"))
    raw = int(take("raw"))
    code, _, sent = take("ExitCode").partition(":")
    reason = present(reasons.normalise(take("Reason")))
    run_time = durations.parse(get("RunTime"))
    return JobView(
        job_id=job_id(raw, array, task, tasks),
        raw_id=raw,
        state=states.parse_job(take("JobState")),
        name=take("name"),
        user=take("user"),
        uid=int(take("uid")),
        account=present(get("Account")),
        qos=present(get("QOS")),
        array_job_id=array,
        array_task_id=task,
        array_tasks=tasks,
        het_job_id=het,
        het_job_offset=het_offset,
        partition=words(take("Partition")),
        reason=reason,
        dependency=present(get("Dependency")),
        nodes=names(take("NodeList")),
        batch_host=present(get("BatchHost")),
        excluded_nodes=names(take("ExcNodeList")),
        required_nodes=names(take("ReqNodeList")),
        features=present(get("Features")),
        reservation=present(get("Reservation")),
        batch=take("BatchFlag") != "0",
        requeue=take("Requeue") == "1",
        restarts=int(take("Restarts")),
        priority=number(take("Priority")),
        hold_kind=reasons.hold_kind(reason),
        submit_time=moment(take("SubmitTime"), zone),
        eligible_time=moment(get("EligibleTime"), zone),
        start_time=moment(get("StartTime"), zone),
        end_time=moment(get("EndTime"), zone),
        run_time=run_time if isinstance(run_time, timedelta) else None,
        time_limit=durations.parse(get("TimeLimit")),
        exit_code=int(code),
        exit_signal=number(sent),
        comment=present(get("Comment")),
        command=present(get("Command")),
        workdir=present(get("WorkDir")),
        stdout=present(get("StdOut")),
        stderr=present(get("StdErr")),
        num_nodes=number(get("NumNodes")),
        num_tasks=number(get("NumTasks")),
        num_cpus=number(get("NumCPUs")),
        tres=present(get("AllocTRES")) or present(known.get("ReqTRES")) or present(get("TRES")),
        tres_per_node=tres_per_node(get("TresPerNode")),
        extra=known,
    )


def node_view(known: dict[str, str], zone: tzinfo | None, default_port: int) -> NodeView:
    """Takes what it names out of `known`; what is left goes to `extra`."""
    take, get = known.pop, partial(_taken, known)
    return NodeView(
        name=take("NodeName"),
        state=states.parse_node(take("State")),
        reason=get("Reason") or "",
        reason_user=get("reason_user") or "",
        reason_at=moment(get("reason_at"), zone),
        address=present(get("NodeAddr")),
        hostname=present(get("NodeHostName")),
        port=number(get("Port"), default_port),
        boot_time=moment(get("BootTime"), zone),
        slurmd_start_time=moment(get("SlurmdStartTime"), zone),
        last_busy_time=moment(get("LastBusyTime"), zone),
        partitions=words(get("Partitions")),
        features=words(get("AvailableFeatures")),
        active_features=words(get("ActiveFeatures")),
        gres=present(get("Gres")),
        cpus=number(get("CPUTot")),
        cpus_alloc=number(get("CPUAlloc")),
        memory_mb=number(get("RealMemory")),
        memory_alloc_mb=number(get("AllocMem")),
        tres=present(get("CfgTRES")),
        tres_alloc=present(get("AllocTRES")),
        version=present(get("Version")),
        os=present(get("OS")),
        comment=get("Comment") or "",
        extra=known,
    )
