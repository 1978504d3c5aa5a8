"""Rounds of servers that answer alternately: order, medians and ratios."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import alternating
from benchmarks.load.server import Target
from benchmarks.load.workload import Workload
from benchmarks.peers.roofline import Rates, Tokens, work
from mmserve.checkpoint.load import load as load_model
from tests.fakes.models.checkpoints import make_llama

LOAD = Workload("W", 1, 1, 10, 10)
TARGETS = [Target("ours", "http://a", "m", None), Target("theirs", "http://b", "m", None)]


def test_every_second_round_has_the_opposite_order_and_the_first_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = list[tuple[str, int]]()

    def once(target: Target, load: Workload, seed: int, _options: object) -> dict[str, float]:
        asked.append((target.name, seed))
        return {"errors": 0, "tokens_per_s": 10.0 + seed}

    monkeypatch.setattr(alternating, "once", once)
    rounds = alternating.measured(TARGETS, LOAD, 2)
    assert asked == [
        ("ours", -1), ("theirs", -1), ("theirs", 0), ("ours", 0), ("ours", 1), ("theirs", 1)
    ]  # fmt: skip
    assert [row["tokens_per_s"] for row in rounds["ours"]] == [10, 11]


def test_a_server_at_the_limit_takes_the_least_time(tmp_path: Path) -> None:
    model = load_model(make_llama(tmp_path))
    rates = Rates(operations=1e9, nbytes=1e9)
    rows = [{"prompt_tokens": 12.0, "cached_tokens": 2.0, "ttft_p50_ms": 1.0, "itl_p50_ms": 1.0, "tokens_per_s": 1.0}]
    least_s = alternating.least_seconds(LOAD, model, {"ours": rows}, rates, "float32")
    assert least_s == work(LOAD, model, Tokens(12, 2), "float32").least_s(rates)
    rounds = {name: [rows[0] | {"requests_per_s": speed / least_s}] for name, speed in (("ours", 0.8), ("theirs", 0.5))}
    assert [row["of_limit"] for row in alternating.medians(rounds, least_s)] == pytest.approx([0.8, 0.5])


def test_a_ratio_is_that_of_one_round() -> None:
    rounds = {
        "ours": [{"tokens_per_s": 20.0}, {"tokens_per_s": 12.0}, {"tokens_per_s": 30.0}],
        "theirs": [{"tokens_per_s": 10.0}, {"tokens_per_s": 10.0}, {"tokens_per_s": 20.0}],
    }
    (row,) = alternating.ratios(rounds)
    assert (row["median"], row["least"], row["most"]) == (1.5, 1.2, 2.0)


def test_a_limit_that_is_not_known_is_left_out() -> None:
    rows = [{"tokens_per_s": 1.0, "ttft_p50_ms": 1.0, "itl_p50_ms": 1.0, "requests_per_s": 1.0}]
    assert [row.keys() for row in alternating.medians({"ours": rows}, None)] == [{"server", *alternating.FIGURES}]


@pytest.mark.parametrize(("flags", "refused"), [("W4", "openvino"), ("W2 --model m", "llama.cpp")])
def test_servers_of_one_text_model_get_no_pictures_and_no_other_model(
    flags: str, refused: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = f"alternating --peers . --load {flags} --server mmserve --server {refused}".split()
    monkeypatch.setattr("sys.argv", argv)
    with pytest.raises(SystemExit):
        alternating.arguments()
    assert "for mmserve, vllm" in capsys.readouterr().err
