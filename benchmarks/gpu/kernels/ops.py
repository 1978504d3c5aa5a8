"""Cases of the operations on activations, and of products."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from benchmarks.gpu.kernels.case import Bench, Case
from mmserve.model_backend.layers.linear_method import LinearShape
from mmserve.model_backend.layers.ops import Ops
from mmserve.model_backend.platforms.interface import Platform

_EPS = 1e-6
Operation = Callable[[Ops, list[torch.Tensor]], torch.Tensor]


def _case(name: str, operation: Operation, *inputs: torch.Tensor) -> Case:
    """``operation`` gets copies, which it may write over."""

    def on(platform: Platform) -> torch.Tensor:
        own = [each.to(platform.device, platform.dtype, copy=True) for each in inputs]
        with torch.inference_mode():
            return operation(platform.ops(), own)

    return Case(name, on)


def rms_norm(bench: Bench) -> Iterator[Case]:
    for rows, size in _sizes(bench, (1, 4096), (33, 576), (64, 1536), (300, 3584)):
        yield _case(
            f"{rows} x {size}",
            lambda ops, t: ops.rms_norm(t[0], t[1], _EPS),
            bench.random(rows, size),
            bench.random(size),
        )


def head_norm(bench: Bench) -> Iterator[Case]:
    """Of the query heads within fused rows."""

    def operation(ops: Ops, t: list[torch.Tensor]) -> torch.Tensor:
        ops.head_norm_(t[0][:, :4], t[1], _EPS)
        return t[0]

    for rows, dim in _sizes(bench, (1, 128), (33, 64), (300, 96)):
        yield _case(f"{rows} x 4 x {dim}", operation, bench.random(rows, 7, dim), bench.random(dim))


def add_normed(bench: Bench) -> Iterator[Case]:
    """The sum and its norm behind it: of a norm, and of the numbers themselves."""

    def operation(ops: Ops, t: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat(
            (ops.add_normed_(t[0], t[1], t[2], t[3], _EPS), ops.add_normed_(t[0], t[1], None, t[2], _EPS), t[0])
        )

    for rows, size in _sizes(bench, (1, 2560), (33, 640), (300, 3840)):
        inputs = (bench.random(rows, size), bench.random(rows, size), bench.random(size), bench.random(size))
        yield _case(f"{rows} x {size}", operation, *inputs)


def layer_norm(bench: Bench) -> Iterator[Case]:
    for rows, size in _sizes(bench, (577, 1024), (33, 384), (1, 1280)):
        inputs = bench.random(rows, size), bench.random(size), bench.random(size)
        yield _case(f"{rows} x {size}", lambda ops, t: ops.layer_norm(t[0], t[1], t[2], _EPS), *inputs)


def rotary(bench: Bench) -> Iterator[Case]:
    """Queries and keys of fused rows; a whole head or its first half, both ways to pair numbers."""
    for rows, dim, turning, adjacent in ((1, 128, 128, False), (33, 64, 32, False), (300, 128, 128, True)):
        if bench.small and rows > 33:
            continue

        def operation(ops: Ops, t: list[torch.Tensor], adjacent: bool = adjacent) -> torch.Tensor:
            ops.rotary_(t[0][:, :6], t[1], t[2], adjacent)
            return t[0]

        angles = torch.rand(rows, turning // 2, generator=bench.generator) * 1000
        inputs = bench.random(rows, 8, dim), angles.cos().to(bench.dtype), angles.sin().to(bench.dtype)
        pairs = "adjacent" if adjacent else "halves"
        yield _case(f"{rows} x 6 x {dim}, {turning} turn, {pairs}", operation, *inputs)


def act_and_mul(bench: Bench) -> Iterator[Case]:
    for name in ("silu", "gelu_pytorch_tanh"):
        for rows, size in _sizes(bench, (1, 14_336), (33, 1536), (64, 18_944)):
            yield _case(
                f"{name}, {rows} x {size}",
                lambda ops, t, name=name: ops.act_and_mul(name)(t[0]),
                bench.random(rows, 2 * size),
            )


def add_scaled(bench: Bench) -> Iterator[Case]:
    def operation(ops: Ops, t: list[torch.Tensor]) -> torch.Tensor:
        ops.add_scaled_(t[0], t[1], t[2])
        return t[0]

    for rows, size in _sizes(bench, (257, 1024), (3, 384)):
        yield _case(f"{rows} x {size}", operation, *(bench.random(rows, size) for _ in range(2)), bench.random(size))


def encoder_attention(bench: Bench) -> Iterator[Case]:
    """Towers: sequences of equal and of different lengths, head sizes that are no powers of two among them."""
    for heads, dim, lengths in ((4, 64, (64, 64)), (4, 80, (64, 16, 16, 7)), (2, 72, (1, 100, 33)), (2, 128, (40,))):
        width = heads * dim
        qkv = bench.random(sum(lengths), 3 * width)
        yield _case(
            f"{heads} heads of {dim}, {len(lengths)} sequences",
            lambda ops, t, heads=heads, lengths=lengths: ops.encoder_attention(t[0], heads, lengths),
            qkv,
        )


def linear(bench: Bench) -> Iterator[Case]:
    """Added to a residual, with a bias and without."""
    for rows, out, inner in _sizes(bench, (1, 6144, 4096), (17, 576, 1536), (128, 3584, 3584)):
        inputs = [bench.random(*shape) for shape in ((rows, inner), (out, inner), (out,), (rows, out))]
        for bias in (True, False):
            name = f"{rows} x {inner} -> {out}{', bias' if bias else ''}"
            yield Case(name, lambda platform, inputs=inputs, bias=bias: _linear(platform, inputs, with_bias=bias))


def _linear(platform: Platform, inputs: list[torch.Tensor], *, with_bias: bool) -> torch.Tensor:
    x, weight, bias, residual = (each.to(platform.device, platform.dtype, copy=True) for each in inputs)
    method = platform.linear_method("none", LinearShape.full(*weight.shape, ("matrix",)))
    with torch.inference_mode():
        method.weight.copy_(weight)  # type: ignore[attr-defined]
        method.finish_loading()
        return method.apply(x, bias if with_bias else None, residual)


def _sizes(bench: Bench, *sizes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Cut to an eighth for a run that only shows that the code works."""
    for size in sizes:
        yield tuple(max(1, each // 32 * 4) if each >= 64 else each for each in size) if bench.small else size
