"""An interactive chat, with typed lines and a server that are prepared."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmserve.cli.chat import store
from mmserve.cli.chat.conversation import Conversation
from mmserve.cli.chat.screen import Screen
from mmserve.cli.chat.session import ChatSession
from mmserve.client.completions import Event, Finished, ServerError, Text

Reply = list[Event | BaseException]
CTRL_C, CTRL_D = KeyboardInterrupt(), EOFError()


class Client:
    """Answers with prepared replies, and keeps the bodies."""

    def __init__(self, replies: list[Reply]) -> None:
        self.bodies: list[dict[str, Any]] = []
        self._replies = iter(replies)

    def stream(self, body: dict[str, Any]) -> Iterator[Event]:
        self.bodies.append(json.loads(json.dumps(body)))
        for event in next(self._replies):
            if isinstance(event, BaseException):
                raise event
            yield event


def _says(*texts: str) -> Reply:
    return [*map(Text, texts), Finished("stop")]


def _chat(lines: list[str | BaseException], replies: list[Reply]) -> tuple[Client, Conversation]:
    typed = iter([*lines, CTRL_D])

    def read_line(prompt: str) -> str:
        line = next(typed)
        if isinstance(line, BaseException):
            raise line
        return line

    client, conversation = Client(replies), Conversation()
    ChatSession(client, "m", conversation, Screen(show_reasoning=True), read_line).run()  # type: ignore[arg-type]
    return client, conversation


def _questions(client: Client, index: int = -1) -> list[object]:
    return [message["content"] for message in client.bodies[index]["messages"]]


def test_each_question_brings_the_conversation_before_it(capsys: pytest.CaptureFixture[str]) -> None:
    client, _ = _chat(["one", "two"], [_says("1", "!"), _says("2")])
    assert _questions(client) == ["one", "1!", "two"]
    assert capsys.readouterr().out == "1!\n2\n"


def test_several_lines_stand_between_quotes() -> None:
    client, _ = _chat(['"""one', "", 'two"""', '"""a"""'], [_says("1"), _says("2")])
    assert _questions(client) == ["one\n\ntwo", "1", "a"]


def test_ctrl_c_stops_the_answer_and_not_the_chat(capsys: pytest.CaptureFixture[str]) -> None:
    client, _ = _chat([CTRL_C, "one", "two"], [[Text("half"), CTRL_C], _says("2")])
    assert _questions(client) == ["one", "half", "two"]
    printed = capsys.readouterr()
    assert "half" in printed.out
    assert "stopped" in printed.err
    assert "/bye" in printed.err


def test_a_question_that_is_refused_is_forgotten_and_its_picture_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.png"
    Image.new("RGB", (9, 9)).save(path)
    client, _ = _chat(
        [f"/image '{path}'", "one", "two", "/show", "three"], [[ServerError("HTTP 400: no")], _says("2"), _says("3")]
    )
    printed = capsys.readouterr().err
    assert "HTTP 400: no" in printed
    assert "user: [picture] two" in printed
    pictures = [[part["type"] for part in body["messages"][0]["content"]] for body in client.bodies]
    assert pictures == [["image_url", "text"]] * 3
    assert _questions(client)[1:] == ["2", "three"]


def test_a_cut_answer_is_kept_and_can_be_asked_again(capsys: pytest.CaptureFixture[str]) -> None:
    client, conversation = _chat(["one", "/retry"], [[Text("ha"), ServerError("cut")], _says("whole")])
    assert "not complete" in capsys.readouterr().err
    assert _questions(client) == ["one"]
    assert conversation.messages[-1]["content"] == "whole"


def test_commands_change_what_is_asked(tmp_path: Path) -> None:
    schema = tmp_path / "s.json"
    schema.write_text('{"type": "integer"}')
    client, _ = _chat(
        ["one", "/undo", "/system Be short.", "/set seed 3", f"/schema {schema}", "two", "/clear", "/schema", "three"],
        [_says("1"), _says("2"), _says("3")],
    )
    assert _questions(client, 1) == ["Be short.", "two"]
    assert client.bodies[1]["seed"] == 3
    assert client.bodies[1]["response_format"]["json_schema"]["schema"] == {"type": "integer"}
    assert _questions(client, 2) == ["Be short.", "three"]
    assert "response_format" not in client.bodies[2]


@pytest.mark.parametrize(
    "line", ["/nope", "/image", "/image no.png", "/load no.json", "/save /no/such/a", "/retry", "/undo", "/schema no"]
)
def test_a_mistake_costs_its_line_alone(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    client, _ = _chat([line, "one"], [_says("1")])
    assert _questions(client) == ["one"]
    assert "error: " in capsys.readouterr().err


def test_a_conversation_is_saved_and_loaded(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    _chat(["/system Be short.", "one", f"/save {path}"], [_says("1")])
    assert path.stat().st_mode & 0o777 == 0o600
    client, _ = _chat([f"/load {path}", "two"], [_says("2")])
    assert _questions(client) == ["Be short.", "one", "1", "two"]


def test_the_last_conversation_is_kept_for_its_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    conversation = Conversation("Be short.")
    store.ChatStore().save_last(conversation)
    assert store.ChatStore().load_last() == conversation
    assert store.ChatStore().lines.read_bytes() == b""
    files = list((tmp_path / "state/mmserve").iterdir())
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert {file.name for file in files} == {"last-chat.json", "chat-lines"}


def test_commands_show_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    shows: list[tuple[str, Callable[[str], bool]]] = [
        ("/show", lambda text: "user: one" in text and "assistant: 1" in text),
        ("/set", lambda text: '{"seed": 3}' in text),
        ("/help", lambda text: "/image PATH or URL" in text),
    ]
    _chat(["one", "/set seed 3", *(line for line, _ in shows)], [_says("1")])
    printed = capsys.readouterr().err
    assert all(shown(printed) for _, shown in shows)


def test_times_are_shown_once_they_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    _chat(["one", "/stats", "two", "/stats", "three"], [_says("1"), _says("2"), _says("3")])
    printed = capsys.readouterr().err
    assert printed.count("[first token after") == 1
    assert printed.index("times are shown") < printed.index("[first token") < printed.index("no longer shown")
