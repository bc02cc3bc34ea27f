"""What stops `up` before anything runs: each garbage value is named, nothing of anybody else's is touched."""

from pathlib import Path

import pytest

from controller.up.accounts import UpError, choose
from controller.up.home import Home
from tests.controller.up_process import Up

pytestmark = pytest.mark.db


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"RELUME_LISTEN": "here"}, "RELUME_LISTEN='here': expected ADDR:PORT"),
        ({"RELUME_WEB_USER": "no-such-user"}, "RELUME_WEB_USER='no-such-user': there is no such user"),
        ({"RELUME_MODE": "yes"}, "RELUME_MODE='yes': expected one of observe, approve, act"),
        ({"REDIS_URL": "localhost"}, "REDIS_URL='localhost': expected redis://"),
    ],
)
def test_a_garbage_value_is_named_without_a_traceback(tmp_path: Path, environment: dict[str, str], words: str) -> None:
    up = Up(tmp_path, f"sqlite:///{tmp_path / 'db.sqlite3'}", environment, arguments=())
    assert up.run_to_end() == 1
    assert words in up.log and "Traceback" not in up.log


def home(folder: Path) -> Home:
    return Home(folder, choose("", ""))


def test_a_folder_that_is_not_relumes_is_not_taken_over(tmp_path: Path) -> None:
    folder = tmp_path / "projects"
    folder.mkdir(mode=0o755)
    (folder / "thesis.tex").write_text("")
    with pytest.raises(UpError, match="holds other things"):
        home(folder).prepare()
    assert folder.stat().st_mode & 0o777 == 0o755
    with pytest.raises(UpError, match="is not a folder"):
        home(folder / "thesis.tex").prepare()


def test_the_key_is_made_once_and_refused_when_others_can_read_it(tmp_path: Path) -> None:
    place = home(tmp_path / "home")
    place.prepare()
    place.make_key()
    key = place.key_file.read_text()
    place.make_key()
    assert place.key_file.read_text() == key and len(key) > 50
    assert place.key_file.stat().st_mode & 0o777 == 0o600
    place.key_file.chmod(0o644)
    with pytest.raises(UpError, match="readable by others"):
        place.make_key()


def test_a_long_home_still_gets_a_socket(tmp_path: Path) -> None:
    place = home(tmp_path / ("x" * 120))
    place.prepare()
    folder = place.socket_folder()
    try:
        assert len(str(folder / "valkey.sock")) < 108 and folder.stat().st_mode & 0o777 == 0o700
    finally:
        folder.rmdir()
