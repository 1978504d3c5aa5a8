"""What a front counts: a page for Prometheus. One process, so a dictionary is enough."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

_GAUGES = frozenset(
    {
        "http_connections", "http_connections_unread", "http_unread_bytes", "replicas", "resumes_waiting",
        "kinds_of_replicas",
    }
)  # fmt: skip
_LABELS: Mapping[str, tuple[str, ...]] = {
    "http_requests": ("route", "status"),
    "http_connections_closed": ("reason",),
    "decisions": ("reason",),
    "failed_attempts": ("replica",),
    "resumed": (),
}
_PREFIX = "mmserve_front:"


class FrontMetrics:
    """``add`` is that of MetricsClient; a gauge is set, anything else is counted."""

    def __init__(self) -> None:
        self._values: defaultdict[tuple[str, tuple[str, ...]], float] = defaultdict(float)

    def add(self, name: str, value: float, *labels: str) -> None:
        """Set a gauge or add to a counter."""
        if name in _GAUGES:
            self._values[name, labels] = value
        else:
            self._values[name, labels] += value

    def value(self, name: str, *labels: str) -> float:
        """0 if it was never added."""
        return self._values.get((name, labels), 0.0)

    def page(self) -> bytes:
        """In Prometheus' text format."""
        lines = [
            f"{_PREFIX}{name}{'' if name in _GAUGES else '_total'}{_braces(name, labels)} {value:g}"
            for (name, labels), value in sorted(self._values.items())
        ]
        return ("\n".join(lines) + "\n").encode()


def _braces(name: str, labels: tuple[str, ...]) -> str:
    pairs = [f'{key}="{value}"' for key, value in zip(_LABELS.get(name, ()), labels, strict=False)]
    return "{" + ",".join(pairs) + "}" if pairs else ""
