"""Parameters are found within fused and stacked tensors, whichever way these are stored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mmserve.model_backend.layers.target import Target
from mmserve.model_backend.loader.stored_parts import stored_parts
from mmserve.runtime.errors import StartupError
from tests.fakes.models.checkpoints import make_text
from tests.fakes.ranks.engine import Driver, make_runner

EXPERTS, INNER, HIDDEN = 3, 4, 6
Tensors = dict[str, torch.Tensor]


def target(*shape: int) -> Target:
    return Target(torch.empty(shape), shape)


def read_all(stored: Mapping[str, torch.Tensor], targets: Mapping[str, Target]) -> None:
    for name, tensor in stored.items():
        for part in stored_parts(name, name, tuple(tensor.shape), targets):
            part.target.into.copy_(part.read(tensor))


def test_fused_projections_and_their_biases() -> None:
    weights = {f"a.{name}_proj.weight": target(rows, HIDDEN) for name, rows in (("q", 4), ("k", 2), ("v", 2))}
    biases = {f"a.{name}_proj.bias": target(rows) for name, rows in (("q", 4), ("k", 2), ("v", 2))}
    stored = {"a.qkv_proj.weight": torch.randn(8, HIDDEN), "a.qkv_proj.bias": torch.randn(8)}
    read_all(stored, weights | biases)
    assert torch.equal(torch.cat([each.into for each in weights.values()]), stored["a.qkv_proj.weight"])
    assert torch.equal(torch.cat([each.into for each in biases.values()]), stored["a.qkv_proj.bias"])


def experts_on(rank: int, ranks: int) -> dict[str, Target]:
    """The targets of one rank, which has its part of each expert's intermediate size."""
    share = INNER // ranks
    up = Target(torch.empty(share, HIDDEN), (INNER, HIDDEN), 0, rank * share)
    down = Target(torch.empty(HIDDEN, share), (HIDDEN, INNER), 1, rank * share)
    return {
        f"m.experts.{expert}.{name}_proj.weight": Target(torch.empty_like(each.into), each.shape, each.dim, each.start)
        for expert in range(EXPERTS)
        for name, each in (("gate", up), ("up", up), ("down", down))
    }


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_stacked_experts(ranks: int, transposed: bool) -> None:
    gate_up, down = torch.randn(EXPERTS, 2 * INNER, HIDDEN), torch.randn(EXPERTS, HIDDEN, INNER)
    stored = {"m.experts.gate_up_proj": gate_up, "m.experts.down_proj": down}
    if transposed:
        stored = {name: tensor.mT.contiguous() for name, tensor in stored.items()}
    parts = [experts_on(rank, ranks) for rank in range(ranks)]
    for targets in parts:
        read_all(stored, targets)
    for expert in range(EXPERTS):
        gate, up, down_ = (
            torch.cat([targets[f"m.experts.{expert}.{name}_proj.weight"].into for targets in parts], dim)
            for name, dim in (("gate", 0), ("up", 0), ("down", 1))
        )
        assert torch.equal(torch.cat([gate, up]), gate_up[expert])
        assert torch.equal(down_, down[expert])


@pytest.mark.parametrize(
    ("name", "shape", "says"),
    [
        ("m.experts.gate_up_proj", (EXPERTS, 5, HIDDEN), r"shape \[5, 6\], config.json says \[8, 6\]"),
        ("m.experts.gate_up_proj", (EXPERTS + 1, 2 * INNER, HIDDEN), "unexpected tensor"),
        ("m.experts.other", (EXPERTS, 2 * INNER, HIDDEN), "unexpected tensor"),
        ("m.qkv_proj.weight", (8, HIDDEN), "unexpected tensor"),
        ("m.other.weight", (8, HIDDEN), "unexpected tensor"),
    ],
)
def test_a_tensor_that_fits_no_parameter_is_named(name: str, shape: tuple[int, ...], says: str) -> None:
    with pytest.raises(StartupError, match=f"tensor stored.*{says}|{says} stored"):
        stored_parts("stored", name, shape, experts_on(0, 1))


def stacked(tensors: Tensors) -> None:
    """As transformers holds the experts in memory. It saves them one by one."""
    names = sorted({name.rpartition(".experts.")[0] for name in tensors if ".experts." in name})
    for name in names:
        own: dict[str, list[torch.Tensor]] = {member: [] for member in ("gate_proj", "up_proj", "down_proj")}
        for expert in range(4):
            for member, weights in own.items():
                weights.append(tensors.pop(f"{name}.experts.{expert}.{member}.weight"))
        gate, up, down = map(torch.stack, own.values())
        tensors[f"{name}.experts.gate_up_proj"] = torch.cat([gate, up], 1)
        tensors[f"{name}.experts.down_proj"] = down


def transposed(tensors: Tensors) -> None:
    stacked(tensors)
    tensors.update({name: each.mT.contiguous() for name, each in tensors.items() if ".experts." in name})


def test_a_model_with_experts_stored_in_each_way(tmp_path: Path) -> None:
    directory = make_text(tmp_path, "qwen3_moe")
    file, found = directory / "model.safetensors", []
    original = load_file(file)
    for change in (None, stacked, transposed):
        tensors = dict(original)
        if change:
            change(tensors)
            save_file(tensors, file, metadata={"format": "pt"})
        driver = Driver(make_runner(directory))
        sequence = driver.add(0, list(range(4, 30)))
        driver.run(6)
        found.append(sequence.output[:6])
    assert found[0] == found[1] == found[2]
