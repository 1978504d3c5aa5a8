"""Description of a checkpoint's quantized linear layers."""

from __future__ import annotations

from typing import Literal

import msgspec

Layout = Literal["awq", "gptq", "packed", "int8", "fp8", "gguf"]


class QuantizationScheme(msgspec.Struct, frozen=True, kw_only=True):
    """One scheme for all quantized layers. Which layers these are, the files tell by the tensors that they store."""

    method: str
    """For people."""
    layout: Layout
    """Of the stored tensors: ``layers.quantized`` has a class for each."""
    bits: Literal[0, 4, 8]
    """Of a weight; 0: each matrix of a GGUF file has its own format."""
    types: tuple[str, ...] = ()
    """Of GGUF: the formats of one layer's matrices, which the loader adds."""
    group_size: int | None = None
    """Neighbouring inputs of an output that share a scale; None: all."""
    zero_points: bool = False
    """A group has a zero point too; otherwise it is the middle of the range."""
    zero_offset: int = 0
    """Added to stored zero points."""
    act_order: bool = False
    """Groups are made of any inputs; ``g_idx`` says which."""
    block: tuple[int, int] | None = None
    """Outputs and inputs that share a scale, of fp8."""
    per_tensor: bool = False
    """One scale for all of a matrix."""
    rounds_inputs: bool = False
    """Inputs are rounded to 8 bits with a scale for each token."""
    float8_inputs: bool = False
    """The checkpoint was made for inputs in FP8, so a platform may round them; it need not."""

    def __str__(self) -> str:
        if not self.bits:
            return self.method
        parts = [f"{self.method}, {self.bits} bits"]
        if self.block is not None:
            parts.append("blocks of {} x {}".format(*self.block))
        else:
            whole = "one scale a matrix" if self.per_tensor else "one scale an output"
            parts.append(f"groups of {self.group_size}" if self.group_size else whole)
        named = (
            (self.zero_points, "zero points"),
            (self.act_order, "act-order"),
            (self.rounds_inputs, "inputs rounded to 8 bits"),
        )
        return ", ".join(parts + [text for is_so, text in named if is_so])
