"""Which level an AArch64 CPU has, by the words of the auxiliary vector. ``make arm`` reads them in QEMU."""

from __future__ import annotations

import mmap

import pytest

from mmserve.model_backend.platforms.cpu.library import arm_features, levels

_CORTEX_A72, _ALL = {16: 2299, 26: 0}, {16: 3976200187, 26: 2139586559}
"""As QEMU's user mode gives them for ``-cpu cortex-a72`` and ``-cpu max``."""


@pytest.mark.parametrize(("words", "names"), [(_CORTEX_A72, ["neon"]), (_ALL, ["neon_bf16", "neon"])])
def test_the_levels_of_a_cpu_follow_its_auxiliary_vector(
    words: dict[int, int], names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr(arm_features, "_getauxval", lambda: words.__getitem__)
    assert [level.name for level in levels.of_this_cpu()] == names


@pytest.mark.parametrize("number_and_bit", [(26, 13), (26, 14)], ids=["i8mm", "bf16"])
def test_the_faster_level_needs_both_kinds_of_products(number_and_bit: tuple[int, int]) -> None:
    number, bit = number_and_bit
    words = _ALL | {number: _ALL[number] & ~(1 << bit)}
    level, _ = levels.LEVELS["aarch64"]
    assert level.needs <= arm_features.found(_ALL.__getitem__)
    assert not level.needs <= arm_features.found(words.__getitem__)


def test_the_auxiliary_vector_of_this_process_is_read() -> None:
    page_size = 6
    assert arm_features._getauxval()(page_size) == mmap.PAGESIZE
