"""benchmarks.memory.mm_memory: memory by process, distinct pictures, native pixels, gauges, comparison with targets."""

from __future__ import annotations

import base64
import io
import os

import numpy as np
import pytest
from PIL import Image

from benchmarks.load.memory import SHARED, usage
from benchmarks.memory import cases, gauges, mm_memory, targets
from benchmarks.memory.pickled.pixels import clip, decoded, native
from benchmarks.memory.pictures import Pictures

MIB = 1 << 20


def _jpegs(pictures: Pictures, count: int) -> list[bytes]:
    urls = [body["messages"][0]["content"][0]["image_url"]["url"] for body in pictures.bodies("m", 1, count)]
    return [base64.b64decode(url.partition(",")[2], validate=True) for url in urls]


def test_a_memory_file_counts_without_a_mapping() -> None:
    before = usage(os.getpid()).by_process[SHARED]
    descriptor = os.memfd_create("test")
    try:
        os.posix_fallocate(descriptor, 0, 32 * MIB)
        assert usage(os.getpid()).by_process[SHARED] - before >= 31 * MIB
    finally:
        os.close(descriptor)


def test_repeated_pictures_have_new_bytes_and_the_same_pixels() -> None:
    first, _, again, _ = _jpegs(Pictures(2, 64, seed=1), 4)
    assert first != again
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(first))), np.asarray(Image.open(io.BytesIO(again))))


def test_the_same_seed_gives_the_same_pictures() -> None:
    assert _jpegs(Pictures(2, 64, seed=1), 2) == _jpegs(Pictures(2, 64, seed=1), 2)
    assert _jpegs(Pictures(1, 64, seed=1), 1) != _jpegs(Pictures(1, 64, seed=2), 1)


def test_native_pixels_hold_every_pixel_twice() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (56, 84, 3), dtype=np.uint8))
    patches = native(image)
    assert patches.shape == (4 * 6, 3 * 2 * 14 * 14)
    frames = patches.reshape(4, 6, 3, 2, 14, 14)
    assert np.array_equal(frames[:, :, :, 0], frames[:, :, :, 1])
    red = frames[:, :, 0, 0].transpose(0, 2, 1, 3).reshape(56, 84)
    expected = (np.asarray(image)[:, :, 0] / 255 - 0.48145466) / 0.26862954
    np.testing.assert_allclose(red, expected, rtol=1e-4, atol=1e-4)


def test_native_pixels_of_the_benchmark_are_54_mib() -> None:
    url = "data:image/jpeg;base64," + base64.b64encode(_jpegs(Pictures(1, 1536, seed=0), 1)[0]).decode()
    assert native(decoded(url)).nbytes / MIB == pytest.approx(54, rel=0.01)
    assert clip(decoded(url)).nbytes / MIB == pytest.approx(1.29, rel=0.01)


def test_only_gauges_of_held_resources_are_read() -> None:
    samples = {
        "mmserve:mm_leases": 0.0,
        'mmserve:budget_used_bytes{budget="body"}': 5.0,
        'mmserve:budget_peak_bytes{budget="body"}': 7.0,
    }
    assert gauges.held_resources(samples) == {"mmserve:mm_leases": 0.0, 'mmserve:budget_used_bytes{budget="body"}': 5.0}


def test_a_gates_rate_is_divided_by_the_rate_without_a_gate_of_the_same_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {("gate off", 1): 20.0, ("gate 1", 1): 19.0, ("gate off", 64): 10.0, ("gate 1", 64): 11.0}

    def measured(case: cases.Case, *_: object) -> dict[str, float]:
        return {"requests_per_s": rates[case.setting, case.tokens]}

    monkeypatch.setattr(mm_memory, "measure", measured)
    found = mm_memory.one_repeat(cases.of_mmserve([1, 0], [1, 64], []), None, None)  # type: ignore[arg-type]
    of_off = {(case.setting, case.tokens): figures["of_off"] for case, figures in found.items()}
    assert of_off == {("gate off", 1): 1.0, ("gate 1", 1): 0.95, ("gate off", 64): 1.0, ("gate 1", 64): 1.1}


def test_gates_are_compared_with_off_and_with_the_baseline() -> None:
    def figures(of_off: float, growth: float) -> dict[str, float]:
        return {
            "ok": 4,
            "of_off": of_off,
            "growth_mib_per_request": growth,
            "waiting_mib_per_request": growth / 2,
        }

    rows = [
        ("gate off", 1, figures(1, 2)),
        ("gate 1", 1, figures(0.9, 1)),
        ("gate 2", 1, figures(0.96, 1)),
        ("baseline", 1, figures(0.1, 15)),
    ]
    found = {(row["figure"], row["setting"]): row["met"] for row in targets.of_burst(rows, 0.5 * MIB, 4)}
    assert found[("growth / baseline's", "gate off, 1 tokens")] == "no"
    assert found[("growth / baseline's", "gate 1, 1 tokens")] == "yes"
    assert found[("requests/s of off's", "gate 1, 1 tokens")] == "no"
    assert found[("requests/s of off's", "gate 2, 1 tokens")] == "yes"
    assert found[("waiting MiB a request", "gate off, 1 tokens")] == "yes"
