"""Several runs of vs_peers as one table."""

from __future__ import annotations

from benchmarks.load.report import Row
from benchmarks.peers.limits import SHARE
from benchmarks.peers.pieces import measured, targets, throughput, times


def row(server: str, tokens_per_s: float, ttft_p50_ms: float, **further: float) -> Row:
    return {"load": "W2", "server": server, "tokens_per_s": tokens_per_s, "ttft_p50_ms": ttft_p50_ms, **further}


PIECES = [
    [row("mmserve", 300.0, 4.0, **{SHARE: 0.9}), row("vllm", 150.0, 8.0), row("vllm-float32", 120.0, 2.0)],
    [row("mmserve", 220.0, 5.0, **{SHARE: 0.8}), row("openvino-kv16", 200.0, 9.0)],
]


def test_ratios_are_within_a_piece_and_each_pieces_own_figure_is_shown() -> None:
    (found,) = throughput(PIECES)
    assert found["mmserve"] == "300, 220"
    assert (found["vllm"], found["openvino-kv16"]) == ("150 (2)", "200 (1.1)")
    assert found["load"] == "W2 tokens/s"
    assert "llama.cpp" not in found, "no piece has it"
    assert found[SHARE] == "0.9, 0.8"


def test_times_have_no_ratio() -> None:
    (found,) = times(PIECES, "ttft_p50_ms")
    assert (found["mmserve"], found["vllm-float32"]) == ("4, 5", "2")
    assert times(PIECES, "start_s") == [], "no load has it"


def test_missed_targets_are_bold_and_name_the_mode() -> None:
    (found,) = targets(PIECES)
    assert found["vllm"] == "tokens/s 2 x vllm, at least 1.6; **TTFT 2 x vllm-float32, at most 1**"
    assert found["openvino"] == "**tokens/s 1.1 x openvino-kv16, at least 1.2**"


def test_rows_of_targets_are_no_measurements() -> None:
    assert measured([{"load": "W1", "server": "vllm"}, {"figure": "tokens_per_s over vllm's"}]) == [
        {"load": "W1", "server": "vllm"}
    ]
