"""Runs a measurement in a process of its own, so that a busy client neither delays it nor is measured."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import TypeVar

A = TypeVar("A")
T = TypeVar("T")


@contextmanager
def beside(measure: Callable[[A, Connection], T], argument: A, keep: Callable[[T], None]) -> Iterator[None]:
    """Run ``measure(argument, connection)`` in another process during the block.

    It sends None over the connection when it has started, and ends when it receives None. On exit of the block ``keep``
    is called with its result."""
    context = multiprocessing.get_context("spawn")
    connection, other_end = context.Pipe()
    process = context.Process(target=_run, args=(measure, argument, other_end), daemon=True)
    process.start()
    other_end.close()
    connection.recv()
    try:
        yield
    finally:
        connection.send(None)
        keep(connection.recv())
        process.join()


def _run(measure: Callable[[A, Connection], T], argument: A, connection: Connection) -> None:
    connection.send(measure(argument, connection))
