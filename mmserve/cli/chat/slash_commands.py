"""The commands of an interactive chat: lines that begin with a slash."""

from __future__ import annotations

from typing import NamedTuple

from mmserve.cli.chat.conversation import ChatError


class Command(NamedTuple):
    """``argument``: the rest of the line."""

    name: str
    argument: str


COMMANDS = {
    "image": ("PATH or URL", "add a picture to the next question; a path in a question does the same"),
    "system": ("[TEXT]", "set the system prompt, or remove it"),
    "set": ("[NAME [VALUE]]", "set a field of the requests (temperature, max_tokens, seed, ...), remove it, show all"),
    "schema": ("[FILE]", "answers follow this JSON schema; without a file: no longer"),
    "retry": ("", "answer the last question again"),
    "undo": ("", "forget the last question and its answer"),
    "clear": ("", "forget all questions and answers"),
    "show": ("", "show the conversation"),
    "stats": ("", "show times and tokens under each answer, or no longer"),
    "save": ("FILE", "write the conversation to a file"),
    "load": ("FILE", "go on with a conversation from a file"),
    "help": ("", "show this list"),
    "bye": ("", "leave; Ctrl-D does the same"),
}
"""By name: what follows it, what it does."""
_OTHER_NAMES = {"?": "help", "exit": "bye", "quit": "bye"}
_NEED_ARGUMENT = frozenset({"image", "save", "load"})


def parse(line: str) -> Command | None:
    """The command of a line; None if it is a question. Raises ChatError for an unknown one or a missing argument.

    A path at the beginning of a question is no command: a command's name is followed by a space or nothing.
    """
    word, _, argument = line.strip().partition(" ")
    if not word.startswith("/") or "/" in word[1:] or "." in word:
        return None
    name = _OTHER_NAMES.get(word[1:], word[1:])
    if name not in COMMANDS:
        raise ChatError(f"unknown command {word}; /help lists them")
    if name in _NEED_ARGUMENT and not argument.strip():
        raise ChatError(f"/{name} {COMMANDS[name][0]}")
    return Command(name, argument.strip())


def help_text() -> str:
    """The list of commands, and the keys."""
    rows = [(f"/{name} {argument}".rstrip(), does) for name, (argument, does) in COMMANDS.items()]
    width = max(len(row[0]) for row in rows)
    keys = 'A question of several lines: Alt-Enter for a new line, or between """ and """.\nCtrl-C stops an answer.'
    return "\n".join(f"{left:<{width}}  {right}" for left, right in rows) + f"\n\n{keys}"
