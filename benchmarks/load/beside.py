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
def beside(measure: Callable[[A, Connection], T], asked: A, keep: Callable[[T], None]) -> Iterator[None]:
    """``measure`` runs while the block does: it sends None when it has begun, receives None when it should end and
    returns what it saw, which ``keep`` is given on exit."""
    context = multiprocessing.get_context("spawn")
    connection, theirs = context.Pipe()
    process = context.Process(target=_run, args=(measure, asked, theirs), daemon=True)
    process.start()
    theirs.close()
    connection.recv()
    try:
        yield
    finally:
        connection.send(None)
        keep(connection.recv())
        process.join()


def _run(measure: Callable[[A, Connection], T], asked: A, connection: Connection) -> None:
    connection.send(measure(asked, connection))
