"""The prompt of an interactive chat: editing, history and completion by prompt_toolkit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output

from mmserve.cli.chat.slash_commands import COMMANDS

_TAKE_PATHS = ("/image ", "/save ", "/load ", "/schema ")


def line_reader(lines: Path | None) -> Callable[[str], str]:
    """A function that shows its argument as the prompt and returns what was typed.

    ``lines``: file with the lines of earlier chats. None: they are kept nowhere.
    """
    keys = KeyBindings()
    keys.add("escape", "enter")(_new_line)
    session: PromptSession[str] = PromptSession(
        history=InMemoryHistory() if lines is None else FileHistory(lines),
        completer=_CommandCompleter(),
        complete_while_typing=False,
        key_bindings=keys,
        enable_open_in_editor=True,
        output=create_output(stdout=sys.stderr),
    )
    return session.prompt


def _new_line(event: KeyPressEvent) -> None:
    event.current_buffer.insert_text("\n")


class _CommandCompleter(Completer):
    """Completes commands, and paths behind those that take one."""

    def __init__(self) -> None:
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        before = document.text_before_cursor
        if before.startswith(_TAKE_PATHS):
            path = before.partition(" ")[2]
            yield from self._paths.get_completions(Document(path, len(path)), complete_event)
        elif before.startswith("/") and " " not in before:
            for name, (_, does) in COMMANDS.items():
                if name.startswith(before[1:]):
                    yield Completion(f"/{name}", start_position=-len(before), display_meta=does)
