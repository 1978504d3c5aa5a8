"""Three nodes, fronts and clients on one machine: hit rates beside one big server, and what each fault costs.

    python -m benchmarks.nodes
    python -m benchmarks.nodes --only faults --event partition

Needs root: nodes are network, process and mount namespaces. Says so and ends with 0 where the kernel forbids them.
Exits with 1 if a request failed or a text has changed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.load import report
from benchmarks.load.server import exit_on_sigterm
from benchmarks.nodes import faults, hits, ray_head
from benchmarks.nodes.namespaces import why_not


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("hits", "faults", "head"))
    parser.add_argument("--clients", type=int, default=64, help="of all nodes together, when hits are measured")
    parser.add_argument("--requests", type=int, default=2000, help="of each rule, when hits are measured")
    parser.add_argument("--event", action="append", choices=[*faults.EVENTS], help="repeatable; default: all")
    parser.add_argument("--json", metavar="PATH", help="write the rows")
    arguments = parser.parse_args()
    if reason := why_not():
        print(f"skipped: {reason}")
        return 0
    rows: list[report.Row] = []
    failed = False
    print(report.machine())
    with exit_on_sigterm(), tempfile.TemporaryDirectory(prefix="mmserve-nodes-") as path:
        if arguments.only in (None, "hits"):
            found, spent = hits.rows(Path(path), arguments.clients, arguments.requests)
            print(f"\n{arguments.clients} clients, {arguments.requests} requests\n\n{report.table(found)}")
            print(f"\nCPU ms a request\n\n{report.table(spent)}", flush=True)
            failed |= any(each["failed"] for each in found)
            rows += found
        if arguments.only in (None, "faults"):
            found = faults.rows(Path(path), arguments.event or [*faults.EVENTS])
            print(f"\n{report.table(found)}", flush=True)
            failed |= any(each["failed"] or each["changed"] for each in found)
            rows += found
        if arguments.only in (None, "head"):
            if reason := ray_head.why_not():
                print(f"\nRay's head: skipped: {reason}")
            else:
                found = ray_head.rows(Path(path))
                print(f"\n{report.table(found)}", flush=True)
                failed |= any(each["failed"] or each["changed"] for each in found)
                rows += found
    report.write_json(arguments.json, rows)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
