"""Who sees what, and what every page carries."""

from collections.abc import Callable

import pytest
from django.test import Client

from tests.dashboard import rows
from tests.dashboard.story import Story

pytestmark = pytest.mark.db

SignIn = Callable[..., Client]
RUN = "tj-4f2a9c0b11de"
OF_JOB = [f"/jobs/{RUN}", f"/jobs/{RUN}/live", f"/jobs/{RUN}/curve.json"]
PAGES = [
    "/",
    "/live/jobs",
    "/nodes",
    "/live/nodes",
    "/nodes/gpu-0422",
    "/nodes/gpu-0422/live",
    "/incidents",
    "/live/incidents",
]


@pytest.fixture
def story(db: None) -> Story:
    return Story(scale=0.02)


def test_a_stranger_is_sent_to_the_login(client: Client, story: Story) -> None:
    for address in OF_JOB + PAGES:
        answer = client.get(address)
        assert answer.status_code == 302 and answer.url.startswith("/login?next=")


@pytest.mark.parametrize("address", OF_JOB)
def test_a_job_is_its_owners_and_the_staffs(sign_in: SignIn, story: Story, address: str) -> None:
    assert sign_in("ada").get(address).status_code == 200
    assert sign_in("root", staff=True).get(address).status_code == 200
    other = sign_in("bob").get(address)
    missing = Client()
    missing.force_login(rows.user("eve"))
    nothing = missing.get(address.replace(RUN, "tj-ffffffffffff"))
    assert other.status_code == nothing.status_code == 404
    assert "mosaic" not in other.text


def test_every_page_opens_for_its_reader(sign_in: SignIn, story: Story) -> None:
    ada = sign_in("ada")
    for address in PAGES:
        assert ada.get(address).status_code == 200


def test_lists_show_only_what_may_be_opened(sign_in: SignIn, story: Story) -> None:
    rows.job(story.cluster, "tj-b0b000000001", "bob", name="secret-of-bob")
    ada, root = sign_in("ada"), sign_in("root", staff=True)
    assert "secret-of-bob" not in ada.get("/").text + ada.get("/?who=all").text + ada.get("/?q=secret").text
    assert "secret-of-bob" not in root.get("/").text
    assert "secret-of-bob" in root.get("/?who=all").text
    assert "mosaic-7b-pretrain" not in sign_in("bob").get("/incidents").text


def test_a_node_page_names_no_job_and_links_no_incident_of_others(sign_in: SignIn, story: Story) -> None:
    node = story.nodes["gpu-0422"]
    node.jobs = [story.main.slurm_job_id]
    node.save()
    for address in ("/nodes", "/nodes/gpu-0422"):
        seen = sign_in(f"bob{len(address)}").get(address).text
        assert RUN not in seen and "mosaic" not in seen
    assert RUN in sign_in("ada").get("/nodes/gpu-0422").text


def test_the_content_policy_is_on_every_answer(sign_in: SignIn, story: Story) -> None:
    ada = sign_in("ada")
    for address in [*OF_JOB, *PAGES, "/login", "/nothing-here"]:
        policy = ada.get(address).headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy and "style-src 'self'" in policy
        assert "unsafe" not in policy


def test_no_shared_cache_keeps_a_page(sign_in: SignIn, story: Story) -> None:
    ada = sign_in("ada")
    for address in [*OF_JOB, *PAGES]:
        assert ada.get(address).headers["Cache-Control"] == "private, no-cache"


def test_no_page_has_inline_style_or_script(client: Client, sign_in: SignIn, story: Story) -> None:
    root = sign_in("root", staff=True)
    for address in [f"/jobs/{RUN}", *PAGES, "/login"]:
        reader = client if address == "/login" else root
        text = reader.get(address).text
        assert " style=" not in text and "<style" not in text
        assert " onclick" not in text and "javascript:" not in text
        assert text.count("<script") == text.count("<script src=") + text.count(
            '<script type="module" src='
        ) + text.count("<script defer src=")
        assert "http://" not in text.replace("http://www.w3.org", "") and "https://" not in text


def test_pages_only_read(sign_in: SignIn, story: Story) -> None:
    ada = sign_in("ada")
    for address in [*OF_JOB, *PAGES]:
        assert ada.post(address).status_code == 405


def test_a_broken_page_says_so_without_a_reason_for_strangers(
    sign_in: SignIn, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("dashboard.views.job.story_of", broken)
    ada = sign_in("ada")
    ada.raise_request_exception = False
    answer = ada.get(f"/jobs/{RUN}")
    assert answer.status_code == 500 and "Training goes on" in answer.text and "secret" not in answer.text


def test_logging_in_and_out(client: Client, story: Story) -> None:
    rows.user("ada", password="a long enough password")
    wrong = client.post("/login", {"username": "ada", "password": "no"})
    assert wrong.status_code == 200 and "correct" in wrong.text
    form = {"username": "ada", "password": "a long enough password", "next": f"/jobs/{RUN}"}
    right = client.post("/login", form)
    assert right.url == f"/jobs/{RUN}"
    assert client.post("/logout").url == "/login"
    assert client.get("/").status_code == 302


def test_the_login_sends_nobody_to_another_site(client: Client, db: None) -> None:
    rows.user("ada", password="a long enough password")
    form = {"username": "ada", "password": "a long enough password", "next": "https://elsewhere.example/"}
    assert client.post("/login", form).url == "/"
