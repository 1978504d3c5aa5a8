"""What one rendering of a chat template may take: characters that it makes, and time of the CPU.

The code of a template calls ``TemplateContext`` before everything whose cost is not bounded by the template's length:
the body of a loop or macro, and operations on texts and lists. See ``template_sandbox``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import Any

from jinja2.runtime import Context
from jinja2.utils import Namespace

MAX_CPU_S = 1.0
"""For one rendering. Templates of known models take microseconds a message."""
_UNITS_PER_LOOK = 5_000
"""Work between two looks at the clock. A unit is about a tenth of a microsecond."""
_CHARS_PER_UNIT = 64
_MIN_CHARS = 1 << 16
_INPUT_COPIES = 4
_TOTAL_COPIES, _MIN_TOTAL_CHARS = 16, 1 << 24
_CONTAINERS = (list, tuple, dict, Namespace)


class TemplateLimitExceeded(Exception):
    """A template takes too much time or memory. The message says which limit; it holds nothing of the input."""


class TemplateContext(Context):
    """The variables of one rendering, and what it may still use. ``limit`` is called before rendering."""

    max_chars = _MIN_CHARS
    """Of one text. A list or object has the characters of all that is in it, and one for each element."""
    _chars = _MIN_TOTAL_CHARS
    _units = _UNITS_PER_LOOK
    _end_s = 0.0

    def limit(self, prompt_chars: int, value: Any) -> None:
        """``prompt_chars``: of the longest prompt that the model takes. ``value``: the input."""
        self._end_s = time.thread_time() + MAX_CPU_S
        self.max_chars = prompt_chars + _INPUT_COPIES * self._size(value, sys.maxsize) + _MIN_CHARS
        self._chars = _TOTAL_COPIES * self.max_chars + _MIN_TOTAL_CHARS

    def derived(self, locals: dict[str, Any] | None = None) -> Context:
        """Blocks have a context of their own, with what is left of this one."""
        context = super().derived(locals)
        assert isinstance(context, TemplateContext)
        context.max_chars, context._chars, context._end_s = self.max_chars, self._chars, self._end_s
        return context

    def spend(self, units: int, chars: int = 0) -> None:
        """Before work that makes up to ``chars`` characters. Raises TemplateLimitExceeded when the time is over."""
        self._units -= units
        self._chars -= chars
        if self._units < 0:
            self._units = _UNITS_PER_LOOK
            if time.thread_time() > self._end_s:
                raise TemplateLimitExceeded(f"it takes more than {MAX_CPU_S:g} s")
        if self._chars < 0:
            raise self._too_many_chars()

    def joined(self, pieces: Iterable[str]) -> str:
        """The prompt's text."""
        kept, chars = [], 0
        for piece in pieces:
            chars += len(piece)
            if chars > self.max_chars:
                raise self._too_many_chars()
            kept.append(piece)
        return "".join(kept)

    def make(self, chars: int) -> None:
        """Before a text or list of this size is made."""
        if chars > self.max_chars:
            raise self._too_many_chars()
        self.spend(1 + chars // _CHARS_PER_UNIT, chars)

    def read(self, value: Any) -> Any:
        """Before an operation that reads all of ``value``, which is returned."""
        if type(value) is str:
            self._units -= 1 + len(value) // _CHARS_PER_UNIT
        elif isinstance(value, str):
            self.spend(1 + len(value) // _CHARS_PER_UNIT)
        elif isinstance(value, _CONTAINERS):
            self.spend(1 + self._size(value, self.max_chars) // _CHARS_PER_UNIT)
        return value

    def size(self, value: Any) -> int:
        """Characters of the value as text, or more than half of them."""
        return len(value) if isinstance(value, str) else self._size(value, self.max_chars)

    def key(self, value: Any) -> Any:
        """Before a name of an object or an index is looked up: hashing a tuple reads all that is in it."""
        return self.read(value) if isinstance(value, tuple) else value

    def _too_many_chars(self) -> TemplateLimitExceeded:
        return TemplateLimitExceeded(f"it makes texts of more than {self.max_chars} characters")

    def _size(self, value: Any, most: int) -> int:
        """Counts what is in two places twice, as a text of the value would have it."""
        chars, elements, stack = 0, 0, [value]
        while stack:
            each = stack.pop()
            elements += 1
            chars += 1
            if isinstance(each, str):
                chars += len(each)
            elif isinstance(each, dict):
                stack += each
                stack += each.values()
            elif isinstance(each, (list, tuple)):
                stack += each
            elif type(each) is Namespace:
                stack.append(each._Namespace__attrs)
            if chars > most or len(stack) > most:
                raise TemplateLimitExceeded(f"it makes lists of more than {most} characters")
            if not elements % _UNITS_PER_LOOK:
                self.spend(_UNITS_PER_LOOK)
        return chars
