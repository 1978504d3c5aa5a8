"""Turns a tiny checkpoint into a quantized one, written from each format's public definition.

Beside it stands the float32 checkpoint of the numbers that the quantized weights stand for.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file

Numbers = npt.NDArray[np.int64]
Tensors = dict[str, torch.Tensor]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The i-th nibble of a word belongs to its output of this number."""
EVERY_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Coded:
    """A matrix as whole numbers of ``bits`` from 0 on. ``group_of``: of each input."""

    bits: int
    codes: Numbers
    zeros: Numbers
    scales: npt.NDArray[np.float32]
    group_of: Numbers

    def weight(self) -> torch.Tensor:
        """float32 [out, in]."""
        whole = self.codes - self.zeros[:, self.group_of]
        return torch.from_numpy(whole.astype(np.float32) * self.scales[:, self.group_of])


@dataclass(frozen=True)
class Rounding:
    """How a matrix becomes whole numbers."""

    bits: int = 4
    group: int | None = 32
    symmetric: bool = False
    lowest_zero: int = 0
    ordered: bool = False
    """Groups are made of inputs that do not follow each other."""

    def of(self, weight: torch.Tensor, seed: int) -> Coded:
        """The nearest numbers, with scales that float16 holds."""
        outputs, inputs = weight.shape
        numbers, top = weight.double().numpy(), 2**self.bits - 1
        group_of = np.arange(inputs) // (self.group or inputs)
        if self.ordered:
            group_of = np.random.default_rng(seed).permutation(group_of)
        parts = [numbers[:, group_of == group] for group in range(int(group_of.max()) + 1)]
        if self.symmetric:
            steps = np.stack([np.abs(part).max(1) / (top / 2) for part in parts], 1)
        else:
            steps = np.stack([(part.max(1) - part.min(1)) / top for part in parts], 1)
        scales = np.maximum(steps, 1e-4).astype(np.float16).astype(np.float32)
        zeros = np.full((outputs, len(parts)), 2 ** (self.bits - 1))
        if not self.symmetric:
            lows = np.stack([part.min(1) for part in parts], 1)
            zeros = np.clip(np.rint(-lows / scales), self.lowest_zero, top).astype(np.int64)
        codes = np.clip(np.rint(numbers / scales[:, group_of]) + zeros[:, group_of], 0, top).astype(np.int64)
        return Coded(self.bits, codes, zeros, scales, group_of)


class Format(NamedTuple):
    """How to store a checkpoint."""

    config: dict[str, Any]
    """Its ``quantization_config``."""
    quantize: Callable[[torch.Tensor, int], tuple[Tensors, torch.Tensor]]
    """(matrix, seed) -> its tensors by suffix, and the matrix that they stand for."""


def _format(config: dict[str, Any], rounding: Rounding, stored: Callable[[Coded], Tensors]) -> Format:
    def quantize(weight: torch.Tensor, seed: int) -> tuple[Tensors, torch.Tensor]:
        matrix = rounding.of(weight, seed)
        return stored(matrix), matrix.weight()

    return Format(config, quantize)


def words(codes: Numbers, bits: int, order: Sequence[int] | None = None) -> torch.Tensor:
    """[rows, n] -> int32 [rows, n bits / 32]. ``order``: which of a word's codes has its lowest bits, and so on."""
    per_word = 32 // bits
    found = np.zeros((len(codes), codes.shape[1] // per_word), np.uint32)
    for place, column in enumerate(order or range(per_word)):
        found |= codes[:, column::per_word].astype(np.uint32) << np.uint32(bits * place)
    return torch.from_numpy(found.view(np.int32).copy())


def _half(scales: npt.NDArray[np.float32]) -> torch.Tensor:
    return torch.from_numpy(scales.copy()).half()


def gptq(
    *, bits: int = 4, group: int | None = 32, sym: bool = False, desc_act: bool = False, version: int = 1
) -> Format:
    """``version`` 2 stores zero points as they are, version 1 less one; 0 says that it is version 1, but is 2."""
    less = 1 if version == 1 else 0
    config = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group or -1,
        "sym": sym,
        "desc_act": desc_act,
        "checkpoint_format": "gptq_v2" if version == 2 else "gptq",
        "damp_percent": 0.01,
    }

    def stored(matrix: Coded) -> Tensors:
        return {
            "qweight": words(matrix.codes, bits).T.contiguous(),
            "qzeros": words(matrix.zeros.T - less, bits),
            "scales": _half(matrix.scales.T),
            "g_idx": torch.from_numpy(matrix.group_of.astype(np.int32)),
        }

    return _format(config, Rounding(bits, group, sym, less, desc_act), stored)


def awq(group: int | None = 32) -> Format:
    config = {"quant_method": "awq", "bits": 4, "group_size": group or -1, "zero_point": True, "version": "gemm"}

    def stored(matrix: Coded) -> Tensors:
        return {
            "qweight": words(matrix.codes.T, 4, AWQ_ORDER),
            "qzeros": words(matrix.zeros.T, 4, AWQ_ORDER),
            "scales": _half(matrix.scales.T),
        }

    return _format(config, Rounding(4, group), stored)


def _compressed(form: str, weights: dict[str, Any], inputs: dict[str, Any] | None = None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "quantization_status": "compressed",
        "kv_cache_scheme": None,
    }


def packed(*, bits: int = 4, group: int | None = 32, symmetric: bool = True, actorder: str | None = None) -> Format:
    """compressed-tensors ``pack-quantized``: w4a16 and w8a16."""
    weights = {
        "num_bits": bits,
        "type": "int",
        "strategy": "group" if group else "channel",
        "group_size": group,
        "symmetric": symmetric,
        "actorder": actorder,
        "dynamic": False,
        "observer": "minmax",
    }

    def stored(matrix: Coded) -> Tensors:
        found = {
            "weight_packed": words(matrix.codes, bits),
            "weight_scale": _half(matrix.scales),
            "weight_shape": torch.tensor(matrix.codes.shape),
        }
        if not symmetric:
            found["weight_zero_point"] = words(matrix.zeros.T, bits).T.contiguous()
        if actorder == "group":
            found["weight_g_idx"] = torch.from_numpy(matrix.group_of.astype(np.int32))
        return found

    rounding = Rounding(bits, group, symmetric, ordered=actorder == "group")
    return _format(_compressed("pack-quantized", weights), rounding, stored)


def int8(*, strategy: str = "channel", rounds_inputs: bool = True, symmetric: bool = True) -> Format:
    """compressed-tensors ``int-quantized``: w8a8 with inputs rounded for each token, or w8a16."""
    weights = {"num_bits": 8, "type": "int", "strategy": strategy, "symmetric": symmetric, "group_size": None}
    inputs = {"num_bits": 8, "type": "int", "strategy": "token", "symmetric": True, "dynamic": True}

    def quantize(weight: torch.Tensor, seed: int) -> tuple[Tensors, torch.Tensor]:
        rows = weight.flatten()[None] if strategy == "tensor" else weight
        matrix = Rounding(8, None, symmetric).of(rows, seed)
        found = {
            "weight": torch.from_numpy((matrix.codes - 128).astype(np.int8)).view_as(weight),
            "weight_scale": torch.from_numpy(matrix.scales).reshape(*(1,) if strategy == "tensor" else (-1, 1)),
        }
        if not symmetric:
            found["weight_zero_point"] = torch.from_numpy((matrix.zeros - 128).astype(np.int8))
        return found, matrix.weight().view_as(weight)

    return Format(_compressed("int-quantized", weights, inputs if rounds_inputs else None), quantize)


def _in_float8(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (weight / scale).clamp(-448, 448).to(torch.float8_e4m3fn)


def float8(strategy: str) -> Format:
    """compressed-tensors ``float-quantized``, with ``strategy`` tensor or channel."""
    weights = {"num_bits": 8, "type": "float", "strategy": strategy, "symmetric": True, "dynamic": False}
    inputs = {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True}

    def quantize(weight: torch.Tensor, seed: int) -> tuple[Tensors, torch.Tensor]:
        largest = weight.abs().amax(1, keepdim=True) if strategy == "channel" else weight.abs().amax().reshape(1)
        scale = (largest / 448).bfloat16().float()
        codes = _in_float8(weight, scale)
        return {"weight": codes, "weight_scale": scale.bfloat16()}, codes.float() * scale

    return Format(_compressed("float-quantized", weights, inputs), quantize)


def fp8(block: tuple[int, int] | None = None, *, static: bool = False) -> Format:
    """``quant_method`` fp8: a scale for each block, or one for the matrix, stored without dimensions."""
    config: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "static" if static else "dynamic"}
    if block is not None:
        config |= {"weight_block_size": list(block), "fmt": "e4m3"}

    def quantize(weight: torch.Tensor, seed: int) -> tuple[Tensors, torch.Tensor]:
        if block is None:
            scale = weight.abs().amax() / 448
            codes = _in_float8(weight, scale)
            found = {"weight": codes, "weight_scale": scale}
            return found | ({"input_scale": torch.tensor(0.01)} if static else {}), codes.float() * scale
        (height, width), (outputs, inputs) = block, weight.shape
        rows, columns = range(0, outputs, height), range(0, inputs, width)
        largest = [[weight[r : r + height, c : c + width].abs().max() for c in columns] for r in rows]
        scales = torch.tensor(largest) / 448
        every = scales.repeat_interleave(height, 0)[:outputs].repeat_interleave(width, 1)[:, :inputs]
        codes = _in_float8(weight, every)
        return {"weight": codes, "weight_scale_inv": scales}, codes.float() * every

    return Format(config, quantize)


def quantize_checkpoint(directory: Path, form: Format, dequantized: Path, layers: Sequence[str] = EVERY_LINEAR) -> Path:
    """Replaces the matrices of ``layers`` in the directory; writes what they stand for to ``dequantized``.

    Matrices that have the same inputs get the same order of them. Vision towers stay as they are.
    """
    shutil.copytree(directory, dequantized)
    tensors, plain = load_file(directory / "model.safetensors"), {}
    stored = dict(tensors)
    for name, weight in tensors.items():
        module, _, last = name.rpartition(".")
        layer, _, part = module.rpartition(".")
        if last != "weight" or part not in layers or "vis" in layer:
            continue
        del stored[name]
        packed, plain[name] = form.quantize(weight, len(layer))
        stored |= {f"{module}.{suffix}": tensor for suffix, tensor in packed.items()}
    assert plain, "no matrix has such a name"
    save_file(stored, directory / "model.safetensors", metadata={"format": "pt"})
    save_file(tensors | plain, dequantized / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"quantization_config": form.config}))
    return directory
