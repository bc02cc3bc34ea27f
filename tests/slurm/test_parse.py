"""Free text that poses as attributes or as records: it is read as text, or the record is reported as doubtful."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.errors import SlurmUnreadable
from controller.slurm.parse import parse_jobs, parse_nodes
from controller.slurm.parse_site import parse_config
from tests.slurm.scripted import NODE, job_record

pytestmark = pytest.mark.pure

CHAIN = "x UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=1 JobState=FAILED"


@pytest.mark.parametrize(
    "name",
    ["llama 7b", "a=b", 'say "hi", now', "x HetJobIdSet=5-6", "x Requeue=0 Restarts=9 JobState=FAILED", "x Command=/e"],
)
def test_a_name_is_only_a_name(name: str) -> None:
    read = parse_jobs(job_record(name=name))
    (job,) = read.jobs
    assert not read.doubtful and job.name == name
    assert (job.state.base, job.requeue, job.restarts, job.het_job_id) == ("RUNNING", True, 0, None)
    assert job.command == "/home/ada/train.sh"


@pytest.mark.parametrize("comment", ["run=7f3a", "a TresPerJob=9 MailUser=x", "JobState=FAILED ExcNodeList=gpu1"])
def test_a_comment_is_only_a_comment(comment: str) -> None:
    read = parse_jobs(job_record(comment=comment))
    (job,) = read.jobs
    assert not read.doubtful and job.comment == comment and job.stdout == "/home/ada/o"
    assert job.state.base == "RUNNING" and job.excluded_nodes == ()
    assert not {"TresPerJob", "MailUser"} & job.extra.keys()


@pytest.mark.parametrize(
    "record",
    [
        job_record(name=CHAIN),
        job_record(comment=CHAIN),
        job_record(comment="a StdErr=/etc/passwd"),
        job_record(comment="a WorkDir=/elsewhere"),
        job_record(name="x\nJobId=999 JobName=y"),
    ],
)
def test_what_imitates_an_anchor_is_doubtful(record: str) -> None:
    assert parse_jobs(record).sure is None


@pytest.mark.parametrize(
    ("real", "forged"),
    [
        ("Network=(null)", "Network=x JobState=FAILED Requeue=0"),  # twice: the later one would win
        ("Network=(null)", "Network=x Reservation=evil"),  # said only where there is one
        ("Account=(null)", "Account=x BatchHost=evil"),
        ("Account=(null)", "Account=x QOS=y Reservation=evil"),
        ("QOS=(null)", "QOS=(null) WCKey=x Reservation=evil"),
    ],
)
def test_what_an_owner_writes_between_the_anchors_is_doubtful(real: str, forged: str) -> None:
    """Slurm takes any text for --network, and for --account and --wckey where nothing is enforced."""
    assert parse_jobs(job_record().replace(real, forged)).sure is None
    honest = parse_jobs(job_record().replace(real, f"{real.partition('=')[0]}=plain")).sure
    assert honest is not None and honest.state.base == "RUNNING" and honest.reservation == ""


def test_a_whole_forged_record_is_one_record_too_many() -> None:
    """The name completes its own record and begins another job's: each looks perfect by itself."""
    forged = job_record(7, name="INNER").replace("INNER", job_record(7).partition("JobName=")[2] + "JobId=8 JobName=y")
    read = parse_jobs(forged)
    assert [job.raw_id for job in read.jobs] == [7, 8] and not read.doubtful
    assert read.sure is None
    assert parse_jobs(job_record(7) + job_record(8)).sure is None


@given(
    st.text(alphabet="ab =\n\"',[]()@\\0159JobIdUser/+:", max_size=60), st.text(alphabet="ab =,JobIdNme\n", max_size=40)
)
def test_no_text_changes_the_facts_unnoticed(name: str, comment: str) -> None:
    read = parse_jobs(job_record(name=name, comment=comment.strip()))
    job = read.sure
    if job is not None:
        assert (job.raw_id, job.user, job.state.base, job.restarts) == (7, "ada", "RUNNING", 0)
        assert job.nodes == ("gpu1", "gpu2") and job.command == "/home/ada/train.sh"


@pytest.mark.parametrize("text", ["", "\n", "slurm_load_jobs error: x", "garbage\n" + job_record()])
def test_what_is_no_list_of_jobs_is_unreadable(text: str) -> None:
    with pytest.raises(SlurmUnreadable):
        parse_jobs(text)


def test_an_empty_queue_is_an_answer() -> None:
    assert parse_jobs("No jobs in the system\n").jobs == ()


def test_a_record_cut_short_is_doubtful_or_unreadable() -> None:
    whole = job_record()
    for cut in range(20, whole.index("Command="), 37):
        try:
            read = parse_jobs(whole[:cut])
        except SlurmUnreadable:
            continue
        assert read.jobs == () and read.doubtful == {7}


def test_a_time_without_a_zone_is_unreadable() -> None:
    record = job_record().replace("SubmitTime=1795963735", "SubmitTime=2026-11-29T14:48:55")
    with pytest.raises(SlurmUnreadable, match="without a zone"):
        parse_jobs(record)
    (job,) = parse_jobs(record, UTC).jobs
    assert job.submit_time == datetime(2026, 11, 29, 14, 48, 55, tzinfo=UTC)


@pytest.mark.parametrize(
    ("tail", "reason", "user", "comment"),
    [
        ("Reason=plain [root@1795971271]", "plain", "root", ""),
        ("Reason=see [a@b] twice=2 [slurm@1795971271] Comment=rack 7 Extra={}", "see [a@b] twice=2", "slurm", "rack 7"),
        ('Reason=multi [root@1795971271]        line = "x" [a@b] Comment=c Reason=zz', 'multi\nline = "x" [a@b]',
         "root", "c"),
        ("Reason=Not responding", "Not responding", "", ""),
        ("Comment=only a=b", "", "", "only a=b"),
        ("", "", "", ""),
    ],
)  # fmt: skip
def test_reasons_of_nodes(tail: str, reason: str, user: str, comment: str) -> None:
    (node,) = parse_nodes(f"{NODE.rstrip()} {tail}\n").values()
    assert (node.reason, node.reason_user, node.comment) == (reason, user, comment)
    assert (node.reason_at is not None) is bool(user)
    assert node.os == "Linux 6.1 #1 SMP" and node.memory_mb == 4000


def test_the_default_port_is_left_out_by_slurm() -> None:
    (node,) = parse_nodes(NODE.replace("Port=6818 ", ""), default_port=6999).values()
    assert node.port == 6999
    (node,) = parse_nodes(NODE, default_port=6999).values()
    assert node.port == 6818


def test_an_unknown_attribute_is_kept() -> None:
    (node,) = parse_nodes(NODE.replace("Arch=", "Novelty=3 Arch=")).values()
    assert node.extra["Novelty"] == "3"


@pytest.mark.parametrize("text", ["", "NodeName=gpu1 \n", "Node gpu1 not found\n"])
def test_what_is_no_list_of_nodes_is_unreadable(text: str) -> None:
    with pytest.raises(SlurmUnreadable):
        parse_nodes(text)


def test_config_without_its_names_is_unreadable() -> None:
    with pytest.raises(SlurmUnreadable, match="ClusterName"):
        parse_config("Configuration data as of 1\nFoo = bar\n")
