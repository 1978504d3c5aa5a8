"""Where the parameters of a model lie within the tensors of a checkpoint, some of which hold several parameters.

Known are projections fused along their outputs (Phi-3), and experts stacked in one tensor, which some checkpoints store
transposed (Qwen3-VL-MoE), with the scales of FP8 beside them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch

from mmserve.model_backend.layers.target import Target, Targets
from mmserve.runtime.errors import StartupError

_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
_EXPERTS, _SCALE = ".experts", "_scale"


@dataclass(frozen=True)
class StoredPart:
    """One parameter within a stored tensor: its rows from ``first_row`` on, of one expert where experts are stacked."""

    name: str
    """Canonical."""
    target: Target
    first_row: int = 0
    expert: int | None = None
    transposed: bool = False
    """Stored as [in, out]."""

    def read(self, stored: Any) -> torch.Tensor:
        """What the target takes. ``stored``: the tensor, or a slice object of its file; only the part is read."""
        into, dim, start = self.target.into, self.target.dim, self.target.start
        first = [self.first_row, *(0,) * (into.dim() - 1)]
        first[dim] += start
        windows = [slice(begin, begin + size) for begin, size in zip(first, into.shape, strict=True)]
        if self.expert is None:
            index = tuple(window if axis in (0, dim) else slice(None) for axis, window in enumerate(windows))
            part: torch.Tensor = stored[index]
            return part.reshape(into.shape)
        part = stored[self.expert : self.expert + 1, *windows[:: -1 if self.transposed else 1]][0]
        return part.T if self.transposed else part


def stored_parts(stored_name: str, name: str, shape: tuple[int, ...], targets: Targets) -> list[StoredPart]:
    """The parameters that a tensor holds. ``name``: its canonical name. Empty if it is known but not needed.

    Raises StartupError if the model has no such parameters, or their shape is not the tensor's.
    """
    if name in targets:
        return [] if targets[name] is None else list(_parts(stored_name, shape, [name], targets))
    if groups := stacked_experts(name, shape):
        suffix = f".weight{_SCALE}" if name.endswith(_SCALE) else ".weight"
        named = [[f"{matrix}{suffix}" for matrix in matrices] for matrices in groups]
        parts = [_parts(stored_name, shape[1:], names, targets, expert) for expert, names in enumerate(named)]
        return list(chain.from_iterable(parts))
    parent, _, last = name.rpartition(".")
    parent, _, fused = parent.rpartition(".")
    return list(_parts(stored_name, shape, [f"{parent}.{member}.{last}" for member in _FUSED.get(fused, ())], targets))


def stacked_experts(name: str, shape: Sequence[int]) -> list[list[str]]:
    """Each expert's matrices within a tensor that stacks experts, or their scales: canonical names without a suffix.

    Empty for any other tensor.
    """
    parent, _, last = name.removesuffix(_SCALE).rpartition(".")
    if not parent.endswith(_EXPERTS) or len(shape) != 3:
        return []
    return [[f"{parent}.{expert}.{member}" for member in _FUSED.get(last, (last,))] for expert in range(shape[0])]


def _parts(
    stored_name: str, shape: tuple[int, ...], names: Sequence[str], targets: Targets, expert: int | None = None
) -> Iterator[StoredPart]:
    """``names``: in the order of their rows. ``shape``: of one expert where experts are stacked."""
    found = {name: target for name in names if (target := targets.get(name))}
    if not names or len(found) < len(names):
        raise StartupError(f"unexpected tensor {stored_name}: its model is not supported as it is")
    one = next(iter(found.values()))
    expected = (sum(target.shape[0] for target in found.values()), *one.shape[1:])
    transposed = expert is not None and shape != expected and shape[::-1] == expected
    if expected not in (shape, _as_matrix(shape)) and not transposed:
        raise StartupError(f"tensor {stored_name} has shape {list(shape)}, config.json says {list(expected)}")
    first_row = 0
    for name, target in found.items():
        yield StoredPart(name, target, first_row, expert, transposed)
        first_row += target.shape[0]


def _as_matrix(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Weights of a convolution that steps by whole patches, such as [out, 3, height, width], are a matrix [out, in]."""
    return (shape[0], math.prod(shape[1:])) if len(shape) > 2 else shape
