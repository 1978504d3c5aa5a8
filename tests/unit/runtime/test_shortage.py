"""Which errors say that the machine has run out of something, and that they become a 503."""

from __future__ import annotations

import errno
import os

import pytest

from mmserve.runtime.shortage import SpareDescriptor, has_descriptors, shortage_of
from tests.fakes.processes.shortages import no_more_descriptors


def _error(code: int) -> OSError:
    return OSError(code, os.strerror(code))


@pytest.mark.parametrize(
    ("error", "missing"),
    [
        (_error(errno.EMFILE), "file descriptors"),
        (_error(errno.ENFILE), "file descriptors"),
        (_error(errno.ENOMEM), "memory"),
        (_error(errno.ENOSPC), "disk space"),
        (_error(errno.EDQUOT), "disk space"),
        (MemoryError(), "memory"),
        (ExceptionGroup("both", [ValueError("a bug"), _error(errno.EMFILE)]), "file descriptors"),
    ],
    ids=repr,
)
def test_a_shortage_is_a_503_that_may_be_tried_again(error: Exception, missing: str) -> None:
    found = shortage_of(error)
    assert found is not None
    assert (found.status, found.message) == (503, f"the server is out of {missing}")
    assert found.retry_after_s is not None


def test_what_a_shortage_has_caused_is_one_too() -> None:
    error = RuntimeError("all attempts failed")
    error.__cause__ = _error(errno.EMFILE)
    assert shortage_of(error) is not None


@pytest.mark.parametrize("error", [ValueError("a bug"), _error(errno.ENOENT), OSError("no number"), TimeoutError()])
def test_other_errors_are_not(error: Exception) -> None:
    assert shortage_of(error) is None


def test_descriptors_run_out_and_come_back() -> None:
    assert has_descriptors()
    with no_more_descriptors():
        assert not has_descriptors()
    assert has_descriptors()


def test_a_spare_descriptor_is_free_while_it_is_lent() -> None:
    spare = SpareDescriptor()
    with no_more_descriptors():
        assert not has_descriptors()
        with spare.lent():
            assert has_descriptors()
        assert not has_descriptors()
    spare.close()


def test_a_spare_descriptor_that_was_taken_is_replaced_when_there_is_one() -> None:
    spare = SpareDescriptor()
    with no_more_descriptors():
        with spare.lent():
            taken = os.eventfd(0)
        spare.refill()
        with spare.lent():
            assert not has_descriptors()
        os.close(taken)
        spare.refill()
        assert not has_descriptors()
    spare.close()
