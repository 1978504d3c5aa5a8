"""Matrix products by the C++ kernels of every level of this CPU, as shares of what the machine can do.

    python -m benchmarks.kernels.linear [--threads N] [--rounds N] [--rows M] [--json FILE]

The shapes of SmolLM2-135M, in bfloat16 weights, 269 MB in all: 30 layers and the head, one after the other, so that
weights come from memory. ``widened`` has float32 inputs, ``rounded`` has inputs in bfloat16. At one row the share is of
the rate at which the same threads read memory (``mm_finite`` over as many bytes), at many rows of torch's rate with a
square matrix: float32 for ``widened``, bfloat16 for ``rounded``. Beside them oneDNN's packed product, of float32 where
it has none of bfloat16. Variants take turns within each round; the least time of the rounds.
"""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Callable, Iterator
from functools import partial

import torch

from benchmarks.kernels.machine_rates import least_s, read_rate, square_rate
from benchmarks.load.report import Row, table, write_json
from mmserve.model_backend.platforms.cpu.library import build, levels
from mmserve.model_backend.platforms.cpu.linear.packed_weights import format_of, pack_short
from mmserve.model_backend.platforms.cpu.threads import set_threads

LAYERS = 30
LAYER_SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))
HEAD = (49152, 576)
ROWS = (1, 4, 8, 16, 32, 256)
_SHORT = 2
"""Bytes of a weight."""


def main() -> None:
    """Print a table of all products and one of each shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, action="append", help=f"repeatable {ROWS}")
    parser.add_argument("--json", help="also write the rows here")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    shapes = [*LAYER_SHAPES * LAYERS, HEAD]
    with torch.inference_mode():
        weights = [torch.randn(*shape).bfloat16() for shape in shapes]
        read = read_rate(options.threads, options.rounds)
        peaks = {
            "widened": square_rate(torch.float32, options.rounds),
            "rounded": square_rate(torch.bfloat16, options.rounds),
        }
        print(
            f"reads {read / 1e9:.1f} GB/s; torch multiplies {peaks['widened'] / 1e9:.0f} GFLOP/s in float32, "
            f"{peaks['rounded'] / 1e9:.0f} in bfloat16\n"
        )
        rows = [_measure(count, weights, read, peaks, options) for count in options.rows or ROWS]
        print(table(rows))
        each = [row for shape in (*LAYER_SHAPES, HEAD) for row in _each(shape, read, peaks, options)]
        print("\n" + table(each))
    write_json(options.json, rows + each)


def _measure(
    count: int, weights: list[torch.Tensor], read: float, peaks: dict[str, float], options: argparse.Namespace
) -> Row:
    """All products of ``count`` rows, in ms; at many rows without the head, which a prompt multiplies once."""
    chosen = weights if count <= 32 else weights[:-1]
    spent = least_s(dict(_variants(count, chosen)), options.rounds)
    numbers = sum(weight.numel() for weight in chosen)
    row: Row = {"rows": count} | {f"{name} ms": 1e3 * spent_s for name, spent_s in spent.items()}
    best = levels.of_this_cpu()[0].name
    for mode, peak in peaks.items():
        row[f"{mode}, share"] = _share(count, numbers, spent[f"{best} {mode}"], read, peak)
    return row


def _each(shape: tuple[int, int], read: float, peaks: dict[str, float], options: argparse.Namespace) -> Iterator[Row]:
    copies = max(1, (128 << 20) // (_SHORT * shape[0] * shape[1]))  # more than the caches hold
    weights = [torch.randn(*shape).bfloat16() for _ in range(copies)]
    best = levels.of_this_cpu()[0].name
    for count in (1, 256):
        chosen = weights if count == 1 else weights[:4]
        spent = least_s(dict(_variants(count, chosen, only_best=True)), options.rounds)
        numbers = sum(weight.numel() for weight in chosen)
        row: Row = {"shape": "x".join(map(str, shape)), "rows": count}
        for mode, peak in peaks.items():
            spent_s = spent[f"{best} {mode}"]
            row[f"{mode} GB/s"] = _SHORT * numbers / spent_s / 1e9
            row[f"{mode} GFLOP/s"] = 2 * count * numbers / spent_s / 1e9
            row[f"{mode}, share"] = _share(count, numbers, spent_s, read, peak)
        yield row


def _share(count: int, numbers: int, spent_s: float, read: float, peak: float) -> float:
    return _SHORT * numbers / spent_s / read if count == 1 else 2 * count * numbers / spent_s / peak


def _variants(
    count: int, weights: list[torch.Tensor], *, only_best: bool = False
) -> Iterator[tuple[str, Callable[[], None]]]:
    inputs = {size: torch.randn(count, size) for _, size in (*LAYER_SHAPES, HEAD)}
    outputs = {size: torch.empty(count, size) for size, _ in (*LAYER_SHAPES, HEAD)}
    panels = [(pack_short(weight), *weight.shape) for weight in weights]

    def run(kernels: ctypes.CDLL, *, rounds_inputs: bool) -> None:
        for packed, out_size, in_size in panels:
            number = format_of(packed, rounds_inputs=rounds_inputs)
            addresses = (inputs[in_size].data_ptr(), packed.data_ptr(), number, None, outputs[out_size].data_ptr())
            kernels.mm_linear(*addresses, count, in_size, out_size, 0)

    for level in levels.of_this_cpu()[: 1 if only_best else None]:
        kernels = build.build_and_load(level)
        set_threads(kernels, torch.get_num_threads())
        yield f"{level.name} widened", partial(run, kernels, rounds_inputs=False)
        yield f"{level.name} rounded", partial(run, kernels, rounds_inputs=True)
    if not only_best:
        dtype = torch.bfloat16 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32
        yield f"oneDNN {dtype}".replace("torch.", ""), _onednn(weights, inputs, dtype)


def _onednn(weights: list[torch.Tensor], inputs: dict[int, torch.Tensor], dtype: torch.dtype) -> Callable[[], None]:
    packed = [(torch.ops.mkldnn._reorder_linear_weight(weight.to(dtype)), weight.shape[1]) for weight in weights]
    converted = {size: x.to(dtype) for size, x in inputs.items()}

    def run() -> None:
        for weight, in_size in packed:
            torch.ops.mkldnn._linear_pointwise(converted[in_size], weight, None, "none", [], "")

    return run


if __name__ == "__main__":
    main()
