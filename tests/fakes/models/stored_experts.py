"""Rewrites how a checkpoint stores its experts: one by one, or stacked in one tensor."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

_FUSED = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
_SUFFIXES = {"weight": "", "weight_scale_inv": "_scale_inv"}
"""Of the tensors of an expert -> of stacked ones."""


def separate_experts(directory: Path) -> None:
    """As checkpoints of text models are published; transformers stacks them when it reads."""
    tensors = load_file(directory / "model.safetensors")
    for name in [name for name in tensors if ".experts." in name and tensors[name].dim() == 3]:
        parent, _, last = name.rpartition(".")
        parts = _FUSED[last]
        for expert, matrix in enumerate(tensors.pop(name)):
            for part, rows in zip(parts, matrix.chunk(len(parts)), strict=True):
                tensors[f"{parent}.{expert}.{part}.weight"] = rows.contiguous()
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def stack_experts(directory: Path, *, transposed: bool = False) -> None:
    """Undoes ``separate_experts``, scales of FP8 too. ``transposed``: as [in, out], as Qwen3-VL is published."""
    tensors = load_file(directory / "model.safetensors")
    layers = sorted({name.partition(".experts.")[0] for name in tensors if ".experts." in name})
    for layer in layers:
        for suffix, of_stack in _SUFFIXES.items():
            for stack, members in _FUSED.items():
                stacked = []
                while f"{layer}.experts.{len(stacked)}.{members[0]}.{suffix}" in tensors:
                    expert = f"{layer}.experts.{len(stacked)}"
                    stacked.append(torch.cat([tensors.pop(f"{expert}.{member}.{suffix}") for member in members]))
                if stacked:
                    whole = torch.stack(stacked)
                    name = f"{layer}.experts.{stack}{of_stack}"
                    tensors[name] = whole.mT.contiguous() if transposed else whole
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
