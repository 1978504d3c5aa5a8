"""What the ways of writing calls have in common. Pure."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmserve.httpserver.output.parsing.source import HEAD_CHARS, Source, Steps
from mmserve.httpserver.output.parsing.writer import Writer

Tools = Mapping[str, Mapping[str, Any]]
"""JSON Schema of each tool's arguments, by the tool's name."""

_NAME = re.compile("[^\\s\"'<>=\ud800-\udfff]{1,128}")


@dataclass(frozen=True)
class Layout(ABC):
    """How calls are written between their markers. Its fields are literals of the text."""

    @abstractmethod
    def read(self, source: Source, writer: Writer, opener: str, tools: Tools) -> Steps[bool]:
        """Read the calls after ``opener``. False if the first has no valid head: then nothing has been written.

        ``source`` remembers the place of the opener until the first call begins.
        """


def is_name(text: str) -> bool:
    """Whether a text can be the name of a function or of an argument. One that cannot be encoded cannot."""
    return _NAME.fullmatch(text) is not None


def begin_call(source: Source, writer: Writer, name: str) -> None:
    """The head of a call is complete."""
    source.commit()
    writer.start_call(name)


def give_up(source: Source, writer: Writer) -> None:
    """This is no call: it is read again, as text. What is too long to be read twice is text as a whole."""
    read = source.rewind()
    if len(read) > HEAD_CHARS:
        writer.say(source.take(len(read)))
