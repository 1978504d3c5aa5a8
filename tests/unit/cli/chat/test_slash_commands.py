"""Lines that begin with a slash."""

from __future__ import annotations

import pytest

from mmserve.cli.chat.conversation import ChatError
from mmserve.cli.chat.slash_commands import COMMANDS, Command, help_text, parse


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("/image a b.png", Command("image", "a b.png")),
        ("  /set  temperature 0 ", Command("set", "temperature 0")),
        ("/system", Command("system", "")),
        ("/?", Command("help", "")),
        ("/exit", Command("bye", "")),
        ("/quit", Command("bye", "")),
    ],
)
def test_a_command_has_a_name_and_the_rest_of_the_line(line: str, command: Command) -> None:
    assert parse(line) == command


@pytest.mark.parametrize("line", ["What is /image?", "/home/me/a.png", "/a.png what is this?", "hi", "3 / 4"])
def test_a_question_is_no_command(line: str) -> None:
    assert parse(line) is None


def test_an_unknown_command_is_named() -> None:
    with pytest.raises(ChatError, match="/imgae"):
        parse("/imgae a.png")


@pytest.mark.parametrize("name", ["image", "save", "load"])
def test_a_missing_argument_is_asked_for(name: str) -> None:
    with pytest.raises(ChatError, match=f"/{name} "):
        parse(f"/{name}  ")


def test_help_names_every_command() -> None:
    assert all(f"/{name}" in help_text() for name in COMMANDS)
