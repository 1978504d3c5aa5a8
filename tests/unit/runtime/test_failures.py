"""Which exception of a group the client sees, and that nothing refers to frames afterwards."""

from __future__ import annotations

import pytest

from mmserve.runtime.errors import InvalidRequest, MediaError, MmserveError, Overloaded, Unavailable
from mmserve.runtime.failures import drop_tracebacks, order_for_client, without_references


def test_an_error_of_the_request_is_shown_before_one_that_a_retry_mends_and_a_bug_last() -> None:
    errors = [
        ValueError("bug"),
        MmserveError("engine"),
        Overloaded("full"),
        Unavailable("restarting", retry_after_s=1.0),
        MediaError("no picture"),
    ]
    nested = BaseExceptionGroup("all", [BaseExceptionGroup("some", errors[:3]), *errors[3:]])
    assert [str(error) for error in order_for_client(nested)] == ["no picture", "full", "restarting", "engine", "bug"]


def test_of_equal_errors_the_first_is_shown() -> None:
    first, second = MediaError("first"), InvalidRequest("second")
    assert order_for_client(ExceptionGroup("both", [first, second]))[0] is first


def test_one_exception_is_its_own_order() -> None:
    bug = ValueError("bug")
    assert order_for_client(bug) == [bug]


def test_a_copy_keeps_what_the_client_is_told_and_refers_to_nothing_else() -> None:
    try:
        try:
            raise ValueError("cause")
        except ValueError as cause:
            raise Unavailable("try again", param="messages", retry_after_s=2.0) from cause
    except Unavailable as error:
        found = without_references(error)
    assert (type(found), found.message, found.param, found.retry_after_s) == (
        Unavailable,
        "try again",
        "messages",
        2.0,
    )
    assert [found.__traceback__, found.__cause__, found.__context__] == [None] * 3


def test_tracebacks_of_causes_contexts_and_members_are_dropped() -> None:
    def failed(kind: type[Exception]) -> Exception:
        try:
            raise kind("raised")
        except Exception as error:  # noqa: BLE001 - of any kind
            return error

    cause, context, member = failed(ValueError), failed(KeyError), failed(TypeError)
    member.__cause__, cause.__context__, context.__context__ = cause, context, member
    group = ExceptionGroup("group", [member])
    with pytest.raises(ExceptionGroup):
        raise group
    drop_tracebacks(group)
    assert [error.__traceback__ for error in (group, member, cause, context)] == [None] * 4
