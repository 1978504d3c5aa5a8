"""Ratios of our figures to the peers', and the targets for them."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.load.report import Row, at_least, at_most
from benchmarks.peers.servers import OURS

_HIGHER_IS_BETTER = ("tokens_per_s", "requests_per_s", "pictures_per_s")
SHARE = "of_limit"
"""The least time of a load divided by the time that it took."""
_MIXED = "W6"
_FIGURES = (*_HIGHER_IS_BETTER, "ttft_p50_ms", "itl_p50_ms", "start_s", "pss_mib")
_OF_TEXT = ("W1", "W2", "W3", "W7", "W8")
_LIMITS = {
    ("W1", "vllm", "start_s"): 0.2,
    ("W1", "vllm", "pss_mib"): 0.7,
    ("W1", "vllm", "ttft_p50_ms"): 1.0,
    ("W2", "vllm", "ttft_p50_ms"): 0.7,
    ("W3", "vllm", "ttft_p50_ms"): 0.6,
    ("W4", "vllm", "ttft_p50_ms"): 0.7,
    ("W5", "vllm", "ttft_p50_ms"): 0.5,
    **{(load, "vllm", "tokens_per_s"): 1.6 for load in _OF_TEXT},
    **{(load, "llama.cpp", "tokens_per_s"): 1.2 for load in _OF_TEXT},
    **{(load, "vllm", "requests_per_s"): 1.6 for load in ("W4", "W5")},
    **{(load, "vllm", "ttft_p50_ms"): 1.0 for load in (_MIXED, "W7", "W8")},
    **{(_MIXED, "vllm", figure): 1.6 for figure in ("tokens_per_s", "pictures_per_s")},
}
"""(load, peer, figure) -> limit of our figure divided by the peer's: a minimum, or a maximum if lower is better."""
_SHARE_OF_LIMIT = 0.75
"""Of the least time that the load can take: more is not asked of a ratio of throughputs."""
_ITL_BESIDE_PICTURES = 1.3


def ratios(rows: Sequence[Row]) -> list[Row]:
    """Our figures divided by each peer's, for every load that both ran; nan if one was not measured."""
    ours = {row["load"]: row for row in rows if row["server"] == OURS}
    return [
        {"load": row["load"], "ours over": row["server"]}
        | {figure: _number(ours[row["load"]], figure) / (_number(row, figure) or float("nan")) for figure in _FIGURES}
        for row in rows
        if row["server"] != OURS and row["load"] in ours
    ]


def check_limits(rows: Sequence[Row], mixed: Sequence[Row]) -> list[Row]:
    """Every ratio that has a limit, with the limit. ``rows``: of the loads; ``mixed``: of W6."""
    found = []
    rows = [*rows, *mixed]
    for row in ratios(rows):
        for (load, peer, figure), limit in _LIMITS.items():
            if (load, peer) == (row["load"], row["ours over"]):
                got, setting = _number(row, figure), f"{figure} over {peer}'s"
                if figure in _HIGHER_IS_BETTER:
                    reach = _within_reach(rows, load, got) if peer == "vllm" else limit
                    found.append(at_least(setting, load, got, min(limit, reach)))
                else:
                    found.append(at_most(setting, load, got, limit))
    return found + [
        at_most("text itl_p50_ms over its own alone", _MIXED, _number(row, "itl_over_alone"), _ITL_BESIDE_PICTURES)
        for row in mixed
        if row["server"] == OURS
    ]


def _within_reach(rows: Sequence[Row], load: str, ratio: float) -> float:
    """What the ratio would be at 75 % of the load's own limit; infinite if that is unknown."""
    share = next((_number(row, SHARE) for row in rows if (row["load"], row["server"]) == (load, OURS)), float("nan"))
    return ratio / share * _SHARE_OF_LIMIT if share > 0 else float("inf")


def _number(row: Row, figure: str) -> float:
    value = row.get(figure, float("nan"))
    assert isinstance(value, float | int)
    return float(value)
