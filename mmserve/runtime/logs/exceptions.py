"""Exceptions as they may stand in a log: in full at level debug, otherwise without messages that may quote a request.

Any exception that is a bug may quote what it failed on: a KeyError a prompt, a decoder's error the bytes of a picture.
"""

from __future__ import annotations

import traceback

from mmserve.runtime.errors import StartupError

_QUOTE_NO_REQUEST = (AssertionError, AttributeError, ImportError, MemoryError, NameError, RuntimeError, StartupError)
"""Their messages are about code, devices and configuration. RuntimeError is what torch raises."""


def message_of(error: BaseException, *, in_full: bool = False) -> str:
    """Type and message in one line; without ``in_full``, a message that may quote a request is left out."""
    name = type(error).__qualname__
    if in_full or isinstance(error, _QUOTE_NO_REQUEST):
        return f"{name}: {error}" if str(error) else name
    if isinstance(error, OSError) and error.errno is not None:
        return f"{name}: [Errno {error.errno}] {error.strerror}"  # without its file, which a client may have named
    return f"{name} (--log-level debug shows its message)" if str(error) else name


def traceback_of(error: BaseException) -> str:
    """The traceback of ``error``, of what caused it and of the members of groups, without messages that may quote a
    request."""
    return "\n".join(_parts(error, set()))


def _parts(error: BaseException, seen: set[int]) -> list[str]:
    seen.add(id(error))
    parts = []
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None and id(before) not in seen:
        link = "was the cause of" if error.__cause__ is not None else "was being handled when this came"
        parts += [*_parts(before, seen), f"\nThe exception above {link}:\n"]
    parts.append("Traceback (most recent call last):")
    parts += [line.rstrip("\n") for line in traceback.format_tb(error.__traceback__)]
    parts.append(message_of(error))
    if isinstance(error, BaseExceptionGroup):
        for index, member in enumerate(error.exceptions, 1):
            if id(member) not in seen:
                parts += [f"\nMember {index} of the group:\n", *_parts(member, seen)]
    return parts
