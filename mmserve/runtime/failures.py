"""What is done with an exception where a request ends: which error its client sees, and what the exception refers to.

A traceback refers to the frames that the exception passed through, and they to everything that the request holds. A
frame that refers to its own exception makes a cycle, which only a full garbage collection frees; asyncio.TaskGroup has
such frames.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

from mmserve.runtime.errors import MmserveError

_RETRY_LATER = frozenset({408, 429})


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions of a group and of the groups in it, in order; ``error`` itself if it is no group."""
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield from leaves(member)
    else:
        yield error


def order_for_client(error: BaseException) -> Sequence[BaseException]:
    """The exceptions of ``error``, first the one that tells the client most about what to do.

    That is an error of the request itself, which a retry cannot mend; then one that a retry can mend; then another
    failure of the server; last an exception that is a bug.
    """
    return sorted(leaves(error), key=_rank)


def without_references(error: MmserveError) -> MmserveError:
    """A copy that refers to no traceback and to no other exception."""
    return copy.copy(error)


def drop_tracebacks(error: BaseException) -> None:
    """Remove the tracebacks of ``error``, of its causes and contexts, and of the members of groups among them."""
    pending, seen = [error], set[int]()
    while pending:
        one = pending.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = None
        pending += [other for other in (one.__cause__, one.__context__) if other is not None]
        if isinstance(one, BaseExceptionGroup):
            pending += one.exceptions


def _rank(error: BaseException) -> int:
    if not isinstance(error, MmserveError):
        return 3
    if error.status < 500:
        return 1 if error.status in _RETRY_LATER else 0
    return 1 if error.retry_after_s is not None else 2
