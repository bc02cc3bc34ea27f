"""The page of one incident: whose it is, its evidence by layer, proof apart from consequences, what was kept back."""

import html as entities
import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from controller.models import Evidence, Incident
from dashboard.presenters import evidence as presenter
from tests.dashboard import rows, signs
from tests.dashboard.reading import Text
from tests.dashboard.story import Story

pytestmark = pytest.mark.db


@pytest.fixture
def story(db: None) -> Story:
    made = Story(scale=0.02)
    made.incident.evidence.all().delete()
    return made


@pytest.fixture
def ada(sign_in: Callable[..., Client]) -> Client:
    return sign_in("ada")


def fault(story: Story) -> Any:
    return story.incident.fault_at


def page(client: Client, story: Story) -> str:
    return client.get(f"/incidents/{story.incident.pk}").text


def lanes(text: str) -> dict[str, Any]:
    found = re.search(r'data-lanes="([^"]*)"', text)
    assert found is not None
    said: dict[str, Any] = json.loads(entities.unescape(found[1]))
    return said


def test_it_is_its_owners_and_the_staffs(sign_in: Callable[..., Client], story: Story) -> None:
    address = f"/incidents/{story.incident.pk}"
    for path in (address, f"{address}/live"):
        assert sign_in(f"root{len(path)}", staff=True).get(path).status_code == 200
        other = sign_in(f"bob{len(path)}").get(path)
        missing = sign_in(f"eve{len(path)}").get(path.replace(str(story.incident.pk), "999999"))
        assert other.status_code == missing.status_code == 404
        assert "mosaic" not in other.text
    assert Client().get(address).url == f"/login?next={address}"
    ada = sign_in("ada")
    assert ada.get(address).status_code == 200
    assert ada.get("/incidents/99999999999999999999").status_code == 404


def test_the_page_and_the_jobs_page_have_the_same_block(ada: Client, story: Story) -> None:
    signs.typical(story.incident, fault(story))
    alone, among = page(ada, story), ada.get(f"/jobs/{story.main.run_id}").text
    assert lanes(alone) == lanes(among[among.index(f'id="incident-{story.incident.pk}"') :])
    assert f'href="/incidents/{story.incident.pk}"' in among
    assert f"/jobs/{story.main.run_id}" in alone


def test_every_list_leads_to_it(ada: Client, story: Story) -> None:
    link = f'href="/incidents/{story.incident.pk}"'
    for address in ("/incidents", "/nodes", "/nodes/gpu-0422"):
        assert link in ada.get(address).text


def test_the_verdict_is_a_sentence_with_its_confidence_in_words(ada: Client, story: Story) -> None:
    words = Text(page(ada, story)).words
    assert "Node lost: gpu-0422. Its agent fell silent" in words and "Confidence: high (0.95)." in words
    Incident.objects.update(confidence=0.6)
    assert "Confidence: medium (0.60)." in Text(page(ada, story)).words
    Incident.objects.update(confidence=0.3)
    assert "Confidence: low (0.30)." in Text(page(ada, story)).words


def test_what_was_kept_back_is_said_with_its_reason(ada: Client, story: Story) -> None:
    assert "Not drained" not in page(ada, story)
    story.incident.assessment = {
        "withheld": ["gpu-0422", "gpu-0423"],
        "node_actions": {"gpu-0410": "reset the GPU when idle"},
        "follow_up": ["pairwise link check"],
        "notes": "not a list",
    }
    story.incident.save()
    words = Text(page(ada, story)).words
    assert "Not drained: gpu-[0422-0423]. Only the job’s own processes accuse them" in words
    assert "trust_job_evidence" in words
    assert "gpu-0410 reset the GPU when idle" in words and "Check pairwise link check" in words


def test_each_piece_has_its_layer_its_origin_its_time_and_its_count(ada: Client, story: Story) -> None:
    signs.typical(story.incident, fault(story))
    text = page(ada, story)
    words = Text(text).words
    at = (fault(story) + timedelta(seconds=0.2)).strftime("%H:%M:%S")
    assert f"fallen off the bus. × 1,204 in 2.4 s +0.2 s, {at}" in words
    assert "gpu-0422 , the node’s sensor" in words and "gpu-0422, rank 83 , the job’s own word" in words
    assert "Slurm, clears gpu-0422 ALLOCATED" in words
    assert "AER: Uncorrected (Fatal) error received came later" in words
    assert "<script>alert(1)" not in text and "&lt;script&gt;alert(1)" in text


def test_consequences_are_a_number_and_behind_it(ada: Client, story: Story) -> None:
    signs.typical(story.incident, fault(story))
    text = page(ada, story)
    block = text[text.index('<ol class="proof">') : text.index('<details class="others">')]
    assert "connection closed by remote peer" not in block
    behind = re.findall(r'<details class="others"><summary>([^<]*)</summary>', text)
    assert behind == ["11 consequences (21 lines) of it", "1 other sign that decided nothing"]


def test_the_lanes_tell_what_every_mark_is(ada: Client, story: Story) -> None:
    signs.typical(story.incident, fault(story))
    data = lanes(page(ada, story))
    assert [layer["words"] for layer in data["layers"]] == [
        "Process", "Communication", "GPU", "Kernel", "Network", "Slurm", "Progress", "Node",
    ]  # fmt: skip
    marks = {mark["id"]: mark for mark in data["signs"]}
    numbered = sorted((m for m in marks.values() if m["n"]), key=lambda m: m["n"])
    assert [m["at"] for m in numbered] == sorted(m["at"] for m in numbered), "numbers rise with time"
    assert marks[6]["layer"] == "library" and marks[6]["stance"] == "clears"
    assert marks[1]["until"] == pytest.approx(2.6) and marks[9]["late"] and "late" not in marks[1]
    assert marks[8]["edge"] == "before" and "edge" not in marks[3], "a week ago does not squeeze the minutes"
    assert all(marks[k]["n"] == 0 for k in range(10, 21))


def test_the_picture_has_a_summary_and_a_table(ada: Client, story: Story) -> None:
    signs.typical(story.incident, fault(story))
    words = Text(page(ada, story)).words
    assert "Evidence by layer over time: 5 accuse, 2 clear something, 2 soft, 11 consequences (21 lines)" in words
    assert "What accuses comes from: Process, GPU, Kernel, Progress." in words
    assert "All 21 pieces of evidence as a table" in words
    assert "a consequence [Rank 80] NCCL WARN" in words


def test_one_piece_and_none(ada: Client, story: Story) -> None:
    words = Text(page(ada, story)).words
    assert "No evidence was recorded." in words and "data-lanes" not in page(ada, story)
    signs.sign(story.incident, 1, fault(story), 1.0).save()
    assert len(lanes(page(ada, story))["signs"]) == 1
    assert "All 1 piece of evidence as a table" in Text(page(ada, story)).words


def test_two_hundred_pieces_cost_no_more_queries_and_none_of_the_proof_is_folded(
    ada: Client, story: Story, django_assert_max_num_queries: Any
) -> None:
    signs.two_hundred(story.incident, fault(story))
    with django_assert_max_num_queries(16):
        text = page(ada, story)
    assert len(lanes(text)["signs"]) == 200
    assert text.count('<li data-of="lanes-') == 200


def test_of_thousands_the_page_shows_what_anybody_reads(ada: Client, story: Story) -> None:
    many = presenter.OTHERS_SHOWN + 900
    Evidence.objects.bulk_create(
        signs.sign(story.incident, k, fault(story), k / 100, stance="cascade") for k in range(1, many)
    )
    signs.sign(story.incident, many, fault(story), 100.0).save()
    text = page(ada, story)
    words = Text(text).words
    assert "999 consequences of it" in words and "899 more are not shown here" in words
    assert [m["n"] for m in lanes(text)["signs"] if m["n"]] == [1]


def test_hostile_lines_stay_text(ada: Client, story: Story) -> None:
    raw = f'\x1b[2J\x00\u202e{rows.HOSTILE}\' onmouseover="x" ' + "y" * 5000
    signs.sign(story.incident, 1, fault(story), 0.0, raw=raw.replace("\x00", ""), node=rows.HOSTILE).save()
    text = page(ada, story)
    assert rows.HOSTILE not in text and "\x1b" not in text and "\u202e" not in text
    assert len(lanes(text)["signs"][0]["raw"]) == presenter.READ_OUT_CHARS


def test_its_live_part_answers_304_while_nothing_changed(ada: Client, story: Story) -> None:
    signs.typical(story.incident, fault(story))
    address = f"/incidents/{story.incident.pk}/live"
    first = ada.get(address)
    same = ada.get(address, headers={"If-None-Match": first.headers["ETag"]})
    assert (first.status_code, same.status_code) == (200, 304)
    signs.sign(story.incident, 50, fault(story), 5.0, late=True).save()
    assert ada.get(address, headers={"If-None-Match": first.headers["ETag"]}).status_code == 200
