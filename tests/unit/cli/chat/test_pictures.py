"""Pictures from files and URLs, and those named in a question."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from PIL import Image

from mmserve.cli.chat import pictures
from mmserve.cli.chat.conversation import ChatError


@pytest.fixture
def png(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a b.png"
    Image.new("RGB", (30, 20)).save(path)
    return path


def test_a_file_is_sent_as_it_is(png: Path) -> None:
    picture = pictures.load(str(png))
    kind, _, data = picture.url.partition(";base64,")
    assert kind == "data:image/png"
    assert base64.b64decode(data) == png.read_bytes()
    assert picture.label == "a b.png 30x20, 1 kB"


@pytest.mark.parametrize("typed", ["a b.png", "'a b.png'", '"a b.png"', "a\\ b.png"])
def test_a_path_is_taken_as_a_terminal_writes_that_of_a_dropped_file(png: Path, typed: str) -> None:
    assert pictures.typed_place(typed) == png.name


@pytest.mark.parametrize("typed", ["it's.png", "b c.png", "https://example.com/a%20b.png"])
def test_another_place_stays_as_it_was_typed(typed: str) -> None:
    assert pictures.typed_place(typed) == typed


def test_the_kind_is_the_files_not_its_names(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.new("RGB", (8, 8)).save(path, "JPEG")
    assert pictures.load(str(path)).url.startswith("data:image/jpeg;")


def test_a_url_is_left_to_the_server() -> None:
    assert pictures.load("https://example.com/a.png").url == "https://example.com/a.png"
    assert len(pictures.load("data:image/png;base64," + "A" * 1000).label) == 80


def test_what_is_no_picture_is_refused_with_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "a.png"
    text.write_text("hello")
    with pytest.raises(ChatError, match="no picture"):
        pictures.load(str(text))
    with pytest.raises(ChatError, match="No such file"):
        pictures.load(str(tmp_path / "b.png"))
    with pytest.raises(ChatError, match="directory"):
        pictures.load(str(tmp_path))
    monkeypatch.setattr("mmserve.client.pictures.MAX_FILE_NBYTES", 4)
    with pytest.raises(ChatError, match="limit"):
        pictures.load(str(text))


@pytest.mark.parametrize(
    ("written", "left"),
    [
        ("what is 'a b.png'?", "what is ?"),
        ('"a b.png" what is it', "what is it"),
        ("a\\ b.png", ""),
        ("describe a\\ b.png, please", "describe , please"),
    ],
)
def test_the_path_of_a_picture_in_a_question_adds_it(png: Path, written: str, left: str) -> None:
    assert pictures.split_paths(written) == (left, ["a b.png"])


@pytest.mark.parametrize("text", ["what's in c.png?", "two\n  lines", "a png is a file", "see http://x.org/a.png"])
def test_other_questions_stay_as_they_are(png: Path, text: str) -> None:
    assert pictures.split_paths(text) == (text, [])
