"""Compiles what the attention kernels launch on a GPU, without one, and reports what the GPU would need for it.

``python -m tests.unit.model_backend.platforms.cuda.compiled CASE...`` prints a JSON list. A case is a JSON list: the
compute capability as a number, then the fields of ``Case``, or "encoder", head size and dtype for a vision tower, or
"rows", size and dtype for norms and gates, "experts" and a number of rows for a mixture, "draw" for sampling, or
"resize" for pictures.
This is a process of its own, because Triton's interpreter, in which the other tests run kernels, is chosen when Triton
is imported.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch

from mmserve.model_backend.attention.interface import (
    AttentionInput,
    AttentionSpec,
    HeadTurn,
    Mask,
    RopeRows,
    StepLimits,
)
from mmserve.model_backend.platforms.cuda.attention.tiling import tiling_of

ENCODER, ROWS, EXPERTS, DRAW, RESIZE = "encoder", "rows", "experts", "draw", "resize"
ADA = 89
"""The first with numbers in FP8."""
SHARED_BYTES = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10, 120: 99 << 10}
"""Of a program, by compute capability."""


class Case(NamedTuple):
    """A model's heads, and what its rows see."""

    dtype: str
    group: int
    kv_heads: int
    dim: int
    window: int | None = None
    whole_images: bool = False
    soft_cap: float | None = None
    kv_dtype: str | None = None
    """None: as ``dtype``."""

    @property
    def spec(self) -> AttentionSpec:
        mask = Mask(self.window, self.whole_images)
        return AttentionSpec(self.group * self.kv_heads, self.kv_heads, self.dim, (mask,), soft_cap=self.soft_cap)

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)  # type: ignore[no-any-return]


class _Driver:
    """A GPU of this capability that exists for the compiler alone."""

    def __init__(self, capability: int) -> None:
        from triton.backends.compiler import GPUTarget

        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def compiled_launches(capability: int) -> Iterator[list[Any]]:
    """Launches within compile and run nothing. Yields the compiled kernels."""
    import triton
    from triton.runtime.jit import JITFunction

    kernels: list[Any] = []

    def launcher(kernel: JITFunction, grid: tuple[int, ...]) -> Any:
        kernel.device_caches.clear()  # they do not know which GPU they are for
        return lambda *args, **kwargs: kernels.append(kernel.warmup(*args, grid=grid, **kwargs))

    triton.runtime.driver.set_active(_Driver(capability))
    with patch.object(JITFunction, "__getitem__", launcher):
        yield kernels


def resources(kernel: Any) -> dict[str, Any]:
    """Registers of a thread, bytes that do not fit them, shared memory of a program, and the way of its products."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(kernel.asm["cubin"])
        cubin.flush()
        shown = subprocess.run([tool, "-res-usage", cubin.name], check=True, capture_output=True, text=True).stdout
    usage = dict(re.findall(r"(REG|STACK):(\d+)", shown))
    ptx = kernel.asm["ptx"]
    return {
        "kernel": kernel.metadata.name,
        "registers": int(usage["REG"]),
        "spilled_bytes": int(usage["STACK"]),
        "shared_bytes": kernel.metadata.shared,
        "warps": kernel.metadata.num_warps,
        "wgmma": "wgmma.mma_async" in ptx,
        "copies_ahead": bool(re.search(r"cp\.async\.wait_group\s+[1-9]", ptx)),
        "wide_copies": len(re.findall(r"cp\.async\.\w+\.shared\.global [^;]*, 0x10", ptx)),
        "other_copies": len(re.findall(r"cp\.async\.\w+\.shared\.global [^;]*, 0x[48]", ptx)),
    }


def compile_case(case: Case, capability: int) -> list[dict[str, Any]]:
    """Of every kernel that a step with decode rows and a prompt launches."""
    from mmserve.model_backend.platforms.cuda.attention.backend import TritonAttention
    from mmserve.model_backend.platforms.cuda.fp8 import launches

    dtype, spec = case.torch_dtype, case.spec
    backend = TritonAttention(
        spec, torch.device("cpu"), tiling_of(spec, dtype, SHARED_BYTES[capability]), num_programs=396
    )
    starts, counts = np.array([600, 0]), np.array([1, 40])
    tables, rows = np.zeros((2, 64), dtype=np.int64), np.arange(41)
    step = AttentionInput(np.arange(2), starts, counts, tables, rows, rows + 1 if case.whole_images else None)
    heads = torch.empty(41, spec.num_heads + 2 * spec.num_kv_heads, case.dim, dtype=dtype)
    q, kv = heads[:, : spec.num_heads], heads[:, spec.num_heads :].unflatten(1, (2, spec.num_kv_heads))
    metadata = backend.builder(StepLimits(64, 2, 64, 16)).build(step)
    cache = torch.empty(backend.kv_shape(64, 16), dtype=getattr(torch, case.kv_dtype or case.dtype))
    angles = torch.empty(1, 41, case.dim // 2, dtype=dtype)
    turn = HeadTurn(*torch.empty(2, case.dim, dtype=dtype), 1e-6, angles, angles, RopeRows(0, 0))
    with compiled_launches(capability) as kernels:
        unmerged = backend.unmerged(q, kv, cache, metadata, *spec.masks, turn=turn)
        unmerged.merged()
        if capability >= ADA and dtype is not torch.float32:
            for group in (None, 128):
                launches.attended(unmerged, group)
    return [resources(kernel) for kernel in kernels]


def compile_encoder(dim: int, dtype: str, capability: int) -> list[dict[str, Any]]:
    """The kernel of a vision tower with heads of so many numbers."""
    from mmserve.model_backend.platforms.cuda.attention.encoder import EncoderAttention
    from mmserve.model_backend.platforms.cuda.attention.tiling import encoder_tiling

    chosen = getattr(torch, dtype)
    with compiled_launches(capability) as kernels:
        EncoderAttention(torch.device("cpu"), encoder_tiling(chosen))(torch.empty(80, 48 * dim, dtype=chosen), 16, [80])
    return [resources(kernel) for kernel in kernels]


def compile_rows(size: int, dtype: str, capability: int) -> list[dict[str, Any]]:
    """The norm of rows of so many numbers, the rotation of heads, the gate of an MLP, and products with codes."""
    from mmserve.model_backend.platforms.cuda.coded_linear import CodedWeights
    from mmserve.model_backend.platforms.cuda.row_ops import RowOps

    ops, x, angles = RowOps(), torch.empty(8, size, dtype=getattr(torch, dtype)), torch.empty(8, 64)
    ops.tested = frozenset({"rms_norm", "add_normed_", "rotary_", "act_and_mul"})
    codes = [torch.empty(64, 2048, dtype=torch.uint8)]
    with compiled_launches(capability) as kernels:
        ops.rms_norm(x, x[0], 1e-6)
        ops.add_normed_(x, x, x[0], x[0], 1e-6)
        ops.rotary_(x.unflatten(1, (-1, 128)), angles.to(x.dtype), angles.to(x.dtype))
        ops.act_and_mul("silu")(x)
        if capability >= ADA:
            codes.append(torch.empty(64, 4096, dtype=torch.float8_e4m3fn))
            _round_rows(x)
        for each in codes:
            scales = torch.empty(64, 32)
            CodedWeights(each, scales, scales, None, 128, 64, 4096).product(torch.empty(64, 4096, dtype=x.dtype))
    return [resources(kernel) for kernel in kernels]


def _round_rows(x: torch.Tensor) -> None:
    """To FP8, in every launch that does, with one scale a row and with several."""
    from mmserve.model_backend.layers.ops import Addend
    from mmserve.model_backend.platforms.cuda.fp8 import launches
    from mmserve.model_backend.platforms.cuda.fp8.rows import GROUP, quantized_in_one_launch

    for group in (None, GROUP):
        quantized_in_one_launch(x, group)
        launches.normed(x, x[0], 1e-6, Addend(x, x[0]), group)
        launches.gated(torch.empty(8, 2 * x.shape[1], dtype=x.dtype), False, group)


def compile_experts(rows: int, capability: int) -> list[dict[str, Any]]:
    """A mixture of 128 experts in bfloat16, as Qwen3-30B-A3B has them."""
    from mmserve.checkpoint.spec import MoeSpec
    from mmserve.model_backend.platforms.cuda.experts.grouped import TritonExperts

    spec = MoeSpec(num_experts=128, top_k=8, intermediate_size=768, renormalize=True)
    x, *others = (
        torch.empty(shape, dtype=torch.bfloat16)
        for shape in ((rows, 2048), (rows, 128), (128, 1536, 2048), (128, 2048, 768))
    )
    with compiled_launches(capability) as kernels:
        TritonExperts(spec, lambda gate_up: gate_up[:, :768].contiguous()).mixed(x, *others, x)
    return [resources(kernel) for kernel in kernels]


def compile_draw(capability: int) -> list[dict[str, Any]]:
    """What draws a token with each kind of cut."""
    from mmserve.model_backend.platforms.cuda.sampling import TritonSampling
    from mmserve.model_backend.platforms.sampling import Draw
    from mmserve.model_backend.transfers import PlainTransfers

    draws = [Draw(temperature=1.0, top_k=50, top_p=0.9, min_p=0.1, key=1)]
    with compiled_launches(capability) as kernels:
        sampling = TritonSampling(PlainTransfers(torch.device("cpu")))
        sampling._draw(torch.empty(1, 128_256), draws)
        sampling.choose_by(torch.empty(1, 128_256), torch.empty(1, 6, dtype=torch.float64))
    return [resources(kernel) | rounding(kernel) for kernel in kernels]


def compile_resize(capability: int) -> list[dict[str, Any]]:
    """Both passes over a picture."""
    from PIL import Image

    from mmserve.model_backend.platforms.cuda.picture_resize import TritonResize
    from mmserve.model_backend.transfers import PlainTransfers

    picture = torch.empty(1000, 1501, 3, dtype=torch.uint8)
    with compiled_launches(capability) as kernels:
        TritonResize(PlainTransfers(torch.device("cpu")))(picture, (1008, 672), Image.Resampling.BICUBIC)
    return [resources(kernel) for kernel in kernels]


def rounding(kernel: Any) -> dict[str, Any]:
    """Whether operations on floats are rounded together, and how many divisions are rounded as IEEE 754 says."""
    ptx = kernel.asm["ptx"]
    return {
        "fused": bool(re.search(r"\b(fma|mad)\.[\w.]*f32", ptx)),
        "divisions": len(re.findall(r"div\.rn\.f32", ptx)),
    }


def compile_any(case: list[Any]) -> list[dict[str, Any]]:
    """See the module's text."""
    capability, *case = case
    match case:
        case [kind, *about] if kind == ENCODER:
            return compile_encoder(*about, capability)
        case [kind, *about] if kind == ROWS:
            return compile_rows(*about, capability)
        case [kind, rows] if kind == EXPERTS:
            return compile_experts(rows, capability)
        case [kind] if kind == DRAW:
            return compile_draw(capability)
        case [kind] if kind == RESIZE:
            return compile_resize(capability)
    return compile_case(Case(*case), capability)


if __name__ == "__main__":
    assert os.environ.get("TRITON_INTERPRET") != "1"
    print(json.dumps([compile_any(json.loads(case)) for case in sys.argv[1:]]))
