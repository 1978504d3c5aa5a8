"""A check of the GPU battery after which the device answers no more ends its process, with a verdict."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.gpu.checks import DEVICE_LOST, Checks, Part, read


def fails() -> None:
    raise RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")


def test_what_launches_a_kernel_says_it_by_an_error_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = False

    def synchronize() -> None:
        if lost:
            raise RuntimeError("CUDA error")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    checks = Checks(tmp_path / "step.json", 60.0)
    checks.run("fails alone", fails)
    lost = True
    with pytest.raises(SystemExit) as ended:
        checks.run("loses the device", fails)
    assert ended.value.code == DEVICE_LOST
    found = read(tmp_path / "step.json")
    assert [(check["name"], check["verdict"]) for check in found["checks"]] == [
        ("fails alone", "fail"),
        ("loses the device", "fail"),
    ]
    assert found["running"] is None


def test_parts_make_every_check_once_but_those_that_are_timed(tmp_path: Path) -> None:
    made: list[str] = []
    for index in range(3):
        checks = Checks(tmp_path / f"{index}.json", 60.0, Part(index, 3))
        checks.run("by all", lambda: made.append("by all"), by_all=True)
        for number in range(7):
            checks.run(str(number), lambda number=number: made.append(str(number)))  # type: ignore[misc]
        checks.run("timed", lambda: made.append("timed"), alone=True)
    assert sorted(made) == [*map(str, range(7)), *["by all"] * 3]
