"""``python -m tests.fuzz [SUBJECT ...] [--count N]``: runs the subjects, all of them by default."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from tests.fuzz import bodies, pictures

SUBJECTS: dict[str, tuple[Callable[[int], str], int]] = {
    "pictures": (pictures.run, 1000),
    "bodies": (bodies.run, 20_000),
}
"""Subject -> its function, and how many inputs of each kind it tries by default."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("subjects", nargs="*", choices=[*SUBJECTS, []], help="default: all")
    parser.add_argument("--count", type=int, help="inputs of each kind")
    options = parser.parse_args()
    for subject in options.subjects or SUBJECTS:
        run, count = SUBJECTS[subject]
        started_s = time.monotonic()
        print(f"{subject}: {run(options.count or count)}, {time.monotonic() - started_s:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
