"""The steps of the GPU battery run on a CPU: their code, with small shapes. A comparison notices a wrong kernel."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import plan
from benchmarks.gpu.checks import Checks, Settings, read
from benchmarks.gpu.kernels import ops
from benchmarks.gpu.kernels.case import Kernel, benches, compare
from mmserve.model_backend.platforms.cpu.ops import KernelOps

SETTINGS = Settings(device="cpu", seed=6, only_families=("llama", "qwen2_5_vl"))
FAMILIES = [f"float32, {family}" for family in SETTINGS.only_families]


@pytest.fixture(autouse=True)
def threads() -> Any:
    """A run on a CPU computes with one thread."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def verdicts(number: int, folder: Path) -> dict[str, str]:
    """Of the step's checks, which are made in this process."""
    path = folder / "step.json"
    import_module(plan.STEPS[number].module).run(Checks(path, 60.0), SETTINGS)
    return {check["name"]: check["verdict"] for check in read(path)["checks"]}


def test_environment_and_ceilings(tmp_path: Path) -> None:
    found = verdicts(0, tmp_path) | verdicts(1, tmp_path)
    assert {name for name, verdict in found.items() if verdict == "pass"} >= {"host", "torch", "copy", "launches"}
    assert "fail" not in found.values()


def test_kernels(tmp_path: Path) -> None:
    found = verdicts(2, tmp_path)
    assert set(found.values()) == {"pass"}
    assert len(found) > 25


def test_families_and_the_packaged_model(tmp_path: Path) -> None:
    found = verdicts(3, tmp_path)
    assert set(found.values()) == {"pass"}
    ahead = {f"launched ahead, {kind}" for kind in ("greedy", "drawn", "penalties")}
    graphs = {f"graphs, {family}" for family in SETTINGS.only_families}
    assert set(found) == {"imports", *FAMILIES, *ahead, *graphs, "float32, packaged model"}


def test_attention_and_engine(tmp_path: Path) -> None:
    found = verdicts(4, tmp_path) | verdicts(5, tmp_path)
    assert [name for name, verdict in found.items() if verdict != "pass"] == ["FlexAttention, 8B, prompt of 8192"]


@pytest.mark.parametrize("wrong", [1.001, float("nan")], ids=str)
def test_a_wrong_kernel_is_noticed(monkeypatch: pytest.MonkeyPatch, wrong: float) -> None:
    (bench,) = benches(SETTINGS, Kernel("rms_norm", ops.rms_norm))  # tests the kernels, so before one is wrong
    monkeypatch.setattr(KernelOps, "rms_norm", lambda self, x, weight, eps: _rms_norm(x, weight, eps) * wrong)
    with pytest.raises(AssertionError, match="relative error"):
        compare(bench, next(ops.rms_norm(bench)))


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)
