"""A mutation of a source file, and a family with its mutations and tests."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple


class TargetError(Exception):
    """A mutation does not fit the source any more."""


class Mutation(NamedTuple):
    """``old`` becomes ``new``."""

    what: str
    """What is wrong afterwards, unique within a family."""
    file: str
    """Below ``mmserve/``."""
    old: str
    """Occurs once in the file."""
    new: str


class Family(NamedTuple):
    tests: tuple[str, ...]
    """Files below ``tests/unit/``, in the order in which they run: quick ones first."""
    select: str
    """pytest's ``-k``: those of the files' tests that are of this family."""
    mutations: tuple[Mutation, ...]


def mutated(source: str, mutation: Mutation) -> str:
    """Raises TargetError unless the mutation's target occurs once, and the result is other code."""
    if (count := source.count(mutation.old)) != 1:
        raise TargetError(f"{mutation.what}: its target occurs {count} times in mmserve/{mutation.file}")
    changed = source.replace(mutation.old, mutation.new)
    try:
        same = ast.dump(ast.parse(changed)) == ast.dump(ast.parse(source))
    except SyntaxError as error:
        raise TargetError(f"{mutation.what}: the mutated mmserve/{mutation.file} is not Python: {error}") from None
    if same:
        raise TargetError(f"{mutation.what}: changes nothing that runs")
    return changed


def mutate(package: Path, mutation: Mutation) -> None:
    """Change a copy of the package ``mmserve``. Raises TargetError."""
    file = package / mutation.file
    if not file.is_file():
        raise TargetError(f"{mutation.what}: there is no mmserve/{mutation.file}")
    file.write_text(mutated(file.read_text(), mutation))
