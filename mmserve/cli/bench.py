"""``mmserve bench``: runs the load generator of the repository."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from mmserve.runtime.errors import StartupError


def add_bench(commands: Any) -> None:
    """Add the command to the list in --help. It parses its own arguments."""
    commands.add_parser("bench", help="measure a server with several loads (all options: mmserve bench --help)")


def bench(argv: Sequence[str]) -> int:
    """Run the command; the exit code. Raises StartupError outside the repository."""
    try:
        # The benchmarks and their HTTP client are not part of the package.
        module = importlib.import_module("benchmarks.serve")
    except ImportError as error:
        raise StartupError(f"mmserve bench needs the repository, installed with make install: {error}") from None
    module.main(argv, prog="mmserve bench")
    return 0
