"""What Relume only watches, refused by name, on what a real Slurm printed (unsupported/README.md)."""

from datetime import UTC
from pathlib import Path

import pytest

from controller.slurm import json_answers, parse, parse_site, unsupported
from controller.slurm.views import JobView, NodeView
from tests.slurm.scripted import job_record

pytestmark = pytest.mark.pure

RECORDED = Path(__file__).parent / "unsupported"
VERSIONS = sorted(folder.name for folder in RECORDED.iterdir() if folder.is_dir())
# The name of each recorded job says what it is about.
REFUSED = {
    "fed": [unsupported.FEDERATION],
    "cont": [unsupported.CONTAINER],
    "bb": [unsupported.BURST_BUFFER],
    "cloudy": [unsupported.CLOUD_NODES],
    "dynjob": [unsupported.DYNAMIC_NODES],
    "plain": [],
}


def nodes_of(version: str, scene: str) -> dict[str, NodeView]:
    return parse.parse_nodes((RECORDED / version / f"{scene}.scontrol-nodes.txt").read_text())


def jobs_of(version: str, scene: str, form: str) -> list[JobView]:
    if form == "text":
        return list(parse.parse_jobs((RECORDED / version / f"{scene}.scontrol-jobs.txt").read_text()).jobs)
    return json_answers.parse_jobs((RECORDED / version / f"{scene}.squeue.json").read_text())


def named(refusals: tuple[str, ...]) -> list[str]:
    assert all(text.startswith("unsupported: ") and "; " in text for text in refusals), "why, and what to do"
    return [text.split(": ")[1] for text in refusals]


@pytest.mark.parametrize(("version", "form"), [("22.05", "text"), ("22.05", "json"), ("25.11", "text")])
def test_each_recorded_job_is_refused_by_name(version: str, form: str) -> None:
    seen = {
        job.name: named(unsupported.of_job(job, nodes_of(version, scene)))
        for scene in ("federation", "others")
        for job in jobs_of(version, scene, form)
    }
    missing = set() if version == "22.05" else {"bb"}  # the other one was built without the plugin
    assert seen == {name: refused for name, refused in REFUSED.items() if name not in missing}


@pytest.mark.parametrize("version", VERSIONS)
def test_each_recorded_cluster_says_what_it_has(version: str) -> None:
    def cluster(scene: str) -> list[str]:
        config = parse_site.parse_config((RECORDED / version / f"{scene}.config.txt").read_text())
        federation = (RECORDED / version / f"{scene}.federation.txt").read_text()
        return named(unsupported.of_cluster(config, nodes_of(version, scene).values(), federation))

    assert unsupported.FEDERATION in cluster("federation")
    buffers = [unsupported.BURST_BUFFER] if version == "22.05" else []
    assert cluster("others") == [unsupported.CLOUD_NODES, unsupported.DYNAMIC_NODES, *buffers]


def test_an_ordinary_cluster_has_none_of_it() -> None:
    ordinary = Path(__file__).parent / "recordings"
    folders = [folder for folder in ordinary.iterdir() if (folder / "config.txt").exists()]
    assert len(folders) >= 3
    for folder in folders:
        config = parse_site.parse_config((folder / "config.txt").read_text())
        nodes = parse.parse_nodes((folder / "01-idle.scontrol-nodes.txt").read_text(), UTC)
        assert unsupported.of_cluster(config, nodes.values()) == ()


def test_a_submit_line_tells_of_container_plugins_and_a_script_of_that_name_does_not() -> None:
    def of(line: str) -> list[str]:
        record = job_record().replace(" WorkDir=", f" SubmitLine={line} WorkDir=")
        (job,) = parse.parse_jobs(record).jobs
        return named(unsupported.of_job(job, {}))

    assert of("sbatch --container-image=nvcr.io#pytorch:25.01 train.sbatch") == [unsupported.CONTAINER]
    assert of("sbatch --container /srv/bundle train.sbatch") == [unsupported.CONTAINER]
    assert of("sbatch train--container.sbatch --containers-of-data=7") == []


def test_an_id_of_a_federation_is_enough() -> None:
    (job,) = parse.parse_jobs(job_record((1 << 26) + 11)).jobs
    assert named(unsupported.of_job(job, {})) == [unsupported.FEDERATION]
    (job,) = parse.parse_jobs(job_record((1 << 26) - 1)).jobs
    assert unsupported.of_job(job, {}) == ()
