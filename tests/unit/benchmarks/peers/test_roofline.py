"""The least work of a load, against counts by hand for a model of one layer."""

from __future__ import annotations

import pytest

from benchmarks.load.workload import Workload
from benchmarks.peers.limits import SHARE, check_limits, verdicts
from benchmarks.peers.roofline import Rates, Tokens, Work, kv_mode, work
from mmserve.checkpoint.spec import LayerSpec, ModelSpec, TextSpec

MODEL = ModelSpec(
    family="llama",
    path="/nowhere",
    text=TextSpec(
        hidden_size=8,
        intermediate_size=16,
        layers=(LayerSpec(),),
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        vocab_size=100,
        max_position=64,
        rms_eps=1e-5,
    ),
)
LAYER = 8 * 4 * (2 * 2 + 2 * 1) + 3 * 8 * 16
HEAD = 100 * 8


def test_operations_and_bytes_of_one_request() -> None:
    load = Workload("one", concurrency=1, requests=1, prompt_words=10, output_tokens=5)
    found = work(load, MODEL, Tokens(prompt=10, cached=4), "float32")
    attention = 4 * 2 * 4 * (6 * 7 + 4 * 12.5)
    assert found.operations == 2 * LAYER * (6 + 4) + 2 * HEAD * 5 + attention
    assert found.nbytes == 4 * (2 * (LAYER + HEAD) + 2 * 4 * 12.5 * 4)


def test_a_step_of_many_sequences_reads_the_weights_once() -> None:
    load = Workload("many", concurrency=8, requests=16, prompt_words=10, output_tokens=5)
    found = work(load, MODEL, Tokens(prompt=10), "bfloat16")
    assert found.nbytes == 2 * 4 * (2 * (LAYER + HEAD) + 8 * 2 * 4 * 12.5 * 2)


def test_right_drafts_save_the_bytes_of_their_steps_and_no_operations() -> None:
    load = Workload("one", concurrency=1, requests=2, prompt_words=10, output_tokens=9)
    plain, drafted = (work(load, MODEL, Tokens(10, drafted=count), "float32") for count in (0, 6))
    assert drafted == Work(plain.operations, plain.nbytes * 2 / 8)


def test_operations_and_bytes_take_turns() -> None:
    assert Work(operations=6.0, nbytes=8.0).least_s(Rates(operations=3.0, nbytes=2.0)) == 6.0


@pytest.mark.parametrize(("share", "target"), [(0.5, 1.6), (0.9, 1.25)])
def test_a_ratio_need_not_exceed_three_quarters_of_the_limit(share: float, target: float) -> None:
    common = {"load": "W2", "ttft_p50_ms": 1.0}
    rows = [
        common | {"server": "mmserve", "tokens_per_s": 1.5, SHARE: share},
        common | {"server": "vllm", "tokens_per_s": 1.0, SHARE: share / 1.5},
    ]
    limits = {row["figure"]: row["target"] for row in check_limits(rows, [])}
    assert limits["tokens_per_s over vllm's"] == f"at least {target:g}"


@pytest.mark.parametrize("load", ["W1", "W2", "W3", "W7", "W8"])
def test_llama_cpp_is_to_be_exceeded_by_a_fifth_whatever_the_limit(load: str) -> None:
    rows = [
        {"load": load, "server": "mmserve", "tokens_per_s": 1.19, SHARE: 0.95},
        {"load": load, "server": "llama.cpp", "tokens_per_s": 1.0},
    ]
    assert [(row["target"], row["met"]) for row in check_limits(rows, [])] == [("at least 1.2", "no")]


def test_the_best_mode_of_a_peer_counts_and_others_bits_do_not() -> None:
    rows = [
        {"load": "W2", "server": "mmserve", "tokens_per_s": 16.0, "ttft_p50_ms": 5.0, SHARE: 0.5},
        {"load": "W2", "server": "vllm", "tokens_per_s": 8.0, "ttft_p50_ms": 9.0},
        {"load": "W2", "server": "vllm-float32", "tokens_per_s": 16.0, "ttft_p50_ms": 10.0},
        {"load": "W2", "server": "openvino", "tokens_per_s": 15.9, "ttft_p50_ms": 1.0},
        {"load": "W2", "server": "openvino-kv16", "tokens_per_s": 10.0, "ttft_p50_ms": 1.0},
    ]
    assert [(row["figure"], row["got"], row["met"]) for row in check_limits(rows, [])] == [
        ("tokens_per_s over vllm-float32's", 1.0, "no"),
        ("ttft_p50_ms over vllm's", pytest.approx(5 / 9), "yes"),
        ("tokens_per_s over openvino-kv16's", 1.6, "yes"),
    ]


def test_each_load_has_a_verdict_with_its_share_and_what_is_missed() -> None:
    rows = [
        {"load": load, "server": server, "tokens_per_s": rate, "ttft_p50_ms": ttft, SHARE: 0.5}
        for load, server, rate, ttft in (
            ("W7", "mmserve", 15.0, 1.0),
            ("W7", "vllm", 5.0, 2.0),
            ("W8", "mmserve", 15.0, 3.0),
            ("W8", "vllm", 10.0, 2.0),
        )
    ]
    assert verdicts(rows, []) == [
        {"load": "W7", "mmserve": "15 tokens_per_s", SHARE: 0.5, "verdict": "all 2 met"},
        {
            "load": "W8",
            "mmserve": "15 tokens_per_s",
            SHARE: 0.5,
            "verdict": "missed: tokens_per_s over vllm's; ttft_p50_ms over vllm's",
        },
    ]


def test_text_and_pictures_beside_each_other_have_targets_too() -> None:
    mixed = [
        {
            "load": "W6",
            "server": "mmserve",
            "tokens_per_s": 3.0,
            "pictures_per_s": 1.2,
            "itl_over_alone": 1.0,
            SHARE: 0.9,
        },
        {"load": "W6", "server": "vllm", "tokens_per_s": 1.0, "pictures_per_s": 1.0},
    ]
    limits = {row["figure"]: (row["target"], row["met"]) for row in check_limits([], mixed)}
    assert limits["tokens_per_s over vllm's"] == ("at least 1.6", "yes")
    assert limits["pictures_per_s over vllm's"] == ("at least 1", "yes")


def test_the_work_of_one_request_is_a_part_of_the_loads() -> None:
    assert Work(operations=6.0, nbytes=8.0) / 2 == Work(operations=3.0, nbytes=4.0)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", "float32"),
        ("--kv-cache-dtype bfloat16", "bfloat16"),
        ("--tp 2 --kv-cache-dtype=bfloat16", "bfloat16"),
        ("--kv-cache-dtype auto", "float32"),
    ],
)
def test_the_bytes_of_the_kv_cache_are_those_that_mmserve_is_started_with(flags: str, expected: str) -> None:
    assert kv_mode("float32", flags) == expected
