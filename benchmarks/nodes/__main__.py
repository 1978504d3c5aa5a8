"""Servers on nodes that are namespaces of one machine: hit rates beside one big server, and what each fault costs.

    python -m benchmarks.nodes
    python -m benchmarks.nodes --only faults --event partition

Needs root: nodes are network, process and mount namespaces. Says so and ends with 0 where the kernel forbids them.
Exits with 1 if a request failed, a text has changed, or ranks or encoders of other nodes gave other answers.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.load import report
from benchmarks.load.server import exit_on_sigterm
from benchmarks.nodes import faults, hits, parity, ray_head
from benchmarks.nodes.namespaces import why_not

Part = Callable[[Path, argparse.Namespace], list[report.Row]]


def _hits(directory: Path, arguments: argparse.Namespace) -> list[report.Row]:
    rows, spent = hits.rows(directory, arguments.clients, arguments.requests)
    print(f"\nCPU ms a request\n\n{report.table(spent)}")
    return rows


def _faults(directory: Path, arguments: argparse.Namespace) -> list[report.Row]:
    return faults.rows(directory, arguments.event or [*faults.EVENTS])


def _head(directory: Path, arguments: argparse.Namespace) -> list[report.Row]:
    if reason := ray_head.why_not():
        print(f"\nRay's head: skipped: {reason}")
        return []
    return ray_head.rows(directory)


def _parity(directory: Path, arguments: argparse.Namespace) -> list[report.Row]:
    return parity.rows()


PARTS: dict[str, Part] = {"hits": _hits, "faults": _faults, "head": _head, "parity": _parity}


def _is_bad(row: report.Row) -> bool:
    return bool(row.get("failed") or row.get("changed") or row.get("passed") == "no")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=[*PARTS], help="repeatable; default: all parts")
    parser.add_argument("--clients", type=int, default=64, help="of all nodes together, when hits are measured")
    parser.add_argument("--requests", type=int, default=2000, help="of each rule, when hits are measured")
    parser.add_argument("--event", action="append", choices=[*faults.EVENTS], help="repeatable; default: all")
    parser.add_argument("--json", metavar="PATH", help="write the rows")
    arguments = parser.parse_args()
    if reason := why_not():
        print(f"skipped: {reason}")
        return 0
    print(report.machine())
    rows: list[report.Row] = []
    with exit_on_sigterm():
        for name in arguments.only or PARTS:
            with tempfile.TemporaryDirectory(prefix="mmserve-nodes-") as path:
                found = PARTS[name](Path(path), arguments)
            if found:
                print(f"\n{name}\n\n{report.table(found)}", flush=True)
            rows += found
    report.write_json(arguments.json, rows)
    return int(any(map(_is_bad, rows)))


if __name__ == "__main__":
    sys.exit(main())
