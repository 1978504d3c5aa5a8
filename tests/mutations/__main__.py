"""Prints which test notices each mutation; exit code 1 if one survives or could not be tried.

    python -m tests.mutations [FAMILY ...]      # all families without a name
    python -m tests.mutations --list

A mutation takes as long as the family's tests take to notice it, usually 3 seconds. Families' tests are first run
without a mutation. Mutations of the C++ kernels are not among them: tests/unit/model_backend/platforms/cpu compares
these with torch.
"""

from __future__ import annotations

import argparse
import sys

from tests.mutations.families import FAMILIES
from tests.mutations.mutation import Family
from tests.mutations.verdict import verdict

_ROW = "{:<16} {:<60} {:<9} {}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"of {', '.join(FAMILIES)}; all without")
    parser.add_argument("--list", action="store_true", help="only print the mutations")
    args = parser.parse_args()
    if unknown := sorted(set(args.families) - set(FAMILIES)):
        parser.error(f"no family {unknown[0]!r}; there are {', '.join(FAMILIES)}")
    chosen = args.families or list(FAMILIES)
    if args.list:
        for name in chosen:
            for mutation in FAMILIES[name].mutations:
                print(f"{name:<16} {mutation.what:<60} {mutation.file}")
        return 0
    wrong = sum(_try(name, FAMILIES[name]) for name in chosen)
    total = sum(len(FAMILIES[name].mutations) for name in chosen)
    print(f"{total} mutations of {len(chosen)} families; {wrong} not killed")
    return int(wrong > 0)


def _try(name: str, family: Family) -> int:
    """How many mutations were not killed. All of them, if the tests fail without a mutation."""
    unchanged = verdict(family, None)
    if unchanged.outcome != "SURVIVED":
        print(
            _ROW.format(name, "nothing", "ERROR", f"fails without a mutation: {unchanged.by} {unchanged.why}"),
            flush=True,
        )
        return len(family.mutations)
    wrong = 0
    for mutation in family.mutations:
        found = verdict(family, mutation)
        print(_ROW.format(name, mutation.what, found.outcome, found.by), flush=True)
        wrong += found.outcome != "killed"
    return wrong


if __name__ == "__main__":
    sys.exit(main())
