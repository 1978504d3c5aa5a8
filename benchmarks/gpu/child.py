"""A child process of one step: ``python -m benchmarks.gpu.child MODULE FILE LIMIT_S SETTINGS [INDEX COUNT]``.

With the last two it makes a part of the checks (``checks.Part``).
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from benchmarks.gpu.checks import Checks, Part, Settings


def main(module: str, path: str, limit_s: str, settings: str, *part: str) -> None:
    """Run the step; its verdicts go to the file."""
    given = json.loads(settings)
    step = importlib.import_module(module)
    checks = Checks(Path(path), float(limit_s), Part(*map(int, part)) if part else None)
    step.run(checks, Settings(**given | {"only_families": tuple(given["only_families"])}))


if __name__ == "__main__":
    main(*sys.argv[1:])
