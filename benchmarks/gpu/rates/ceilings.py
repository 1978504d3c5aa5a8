"""The ceilings of this run: those of step 1, or measured now where it was not run."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.gpu.checks import Settings
from benchmarks.gpu.rates.floors import Ceilings
from benchmarks.gpu.results import figures
from benchmarks.gpu.steps.ceilings import COPY, PRODUCT, Probe, copy, product


def ceilings(settings: Settings) -> Ceilings:
    """Raises Skipped without a device."""
    path = Path(settings.earlier)
    steps = json.loads(path.read_text())["steps"] if settings.earlier and path.exists() else []
    copied, multiplied = figures(steps, 1, COPY), figures(steps, 1, PRODUCT)
    if not (copied and multiplied):
        probe = Probe(settings)
        copied, multiplied = copy(probe), product(probe)
    return Ceilings(nbytes=copied["bytes/s"], operations=multiplied["operations/s"])
