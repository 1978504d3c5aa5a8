"""The ways that ``--kernel-ways auto`` has chosen, beside the default and beside each way pinned for all products.

    python -m benchmarks.kernels.kernel_ways [--threads N] [--rounds N] [--rows M] [--json FILE]

All products of SmolLM2-135M in bfloat16, as ``benchmarks.kernels.linear`` has them; of 128 rows without the head. The
choice is measured anew, as at a model's first start, in a cache directory of its own. Then the ways take turns within
each round; the table has the least milliseconds of each. A way is named by how far ahead it fetches weights (KiB),
the outputs of a task, and the KiB of inputs of a task. ``chosen / best``: 1 if no pinned way is faster than the
choice.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from benchmarks.kernels.linear import HEAD, LAYER_SHAPES, LAYERS
from benchmarks.kernels.machine_rates import least_s
from benchmarks.load.report import Row, table, write_json
from mmserve.model_backend.layers.linear_method import LinearShape
from mmserve.model_backend.platforms.cpu.library import build, levels
from mmserve.model_backend.platforms.cpu.linear.packing import PackedLinear, RoundedKernelLinear
from mmserve.model_backend.platforms.cpu.threads import set_threads
from mmserve.model_backend.platforms.cpu.ways.candidates import MAX_ROWS, Choices, Product, Way, candidates, install
from mmserve.model_backend.platforms.cpu.ways.choose import choose_ways
from mmserve.model_backend.platforms.cpu.ways.store import kept

_HEAD_ROWS = 16
"""Most rows that the head multiplies: of a prompt it multiplies one."""
Variants = dict[str, Choices]


def main() -> None:
    """Print a table with a line for each number of rows, and how many choices differ from the default."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int, action="append", choices=tuple(MAX_ROWS), help="repeatable")
    parser.add_argument("--json", help="also write the rows here")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    kernels = build.build_and_load(levels.of_this_cpu()[0])
    set_threads(kernels, options.threads)
    with torch.inference_mode():
        linears = [_linear(kernels, shape) for shape in (*LAYER_SHAPES * LAYERS, HEAD)]
        chosen = _chosen(kernels, options.threads, linears)
        rows = [_measured(kernels, count, linears, chosen, options.rounds) for count in options.rows or MAX_ROWS]
    print(f"{len(chosen)} products and numbers of rows were measured, {_num_others(chosen)} are not the default\n")
    for row in rows:
        print(table([row]) + "\n")
    write_json(options.json, rows)


def _linear(kernels: ctypes.CDLL, shape: tuple[int, int]) -> PackedLinear:
    linear = RoundedKernelLinear(kernels, LinearShape.full(*shape))
    linear.weight.normal_()
    linear.finish_loading()
    return linear


def _chosen(kernels: ctypes.CDLL, threads: int, linears: Sequence[PackedLinear]) -> Choices:
    """What a first start of this model chooses."""
    before = os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory() as directory:
        os.environ["XDG_CACHE_HOME"] = directory
        try:
            choose_ways(kernels, threads, linears, "auto")
            (found,) = kept()
        finally:
            if before is None:
                del os.environ["XDG_CACHE_HOME"]
            else:
                os.environ["XDG_CACHE_HOME"] = before
    assert found.kernels == Path(kernels._name).name
    return found.choices()


def _num_others(chosen: Choices) -> int:
    return sum(way != candidates(product.format, rows)[0] for (product, rows), way in chosen.items())


def _measured(kernels: ctypes.CDLL, rows: int, linears: Sequence[PackedLinear], chosen: Choices, rounds: int) -> Row:
    used = linears if rows <= _HEAD_ROWS else linears[:-1]
    products = {Product(linear.format, linear.in_size, linear.out_size) for linear in used}
    ways = candidates(linears[0].format, rows)
    variants: Variants = {"chosen": chosen, "default": {}}
    variants |= {_name(way): {(product, rows): way for product in products} for way in ways}
    spent = least_s({name: _run(kernels, rows, used, choices) for name, choices in variants.items()}, rounds)
    best_s = min(spent.values())
    row: Row = {"rows": rows, "chosen / best": spent["chosen"] / best_s}
    return row | {f"{name} ms": 1e3 * seconds for name, seconds in spent.items()}


def _name(way: Way) -> str:
    return f"{way.ahead_nbytes >> 10}, {way.task_outputs}, {way.task_rows_nbytes >> 10}"


def _run(kernels: ctypes.CDLL, rows: int, linears: Sequence[PackedLinear], choices: Choices) -> Callable[[], None]:
    inputs = {linear.in_size: torch.randn(rows, linear.in_size) for linear in linears}
    outputs = {linear.out_size: torch.zeros(rows, linear.out_size) for linear in linears}
    return partial(_multiply, kernels, linears, inputs, outputs, choices)


def _multiply(
    kernels: ctypes.CDLL,
    linears: Sequence[PackedLinear],
    inputs: dict[int, torch.Tensor],
    outputs: dict[int, torch.Tensor],
    choices: Choices,
) -> None:
    install(kernels, choices)
    for linear in linears:
        linear.apply(inputs[linear.in_size], residual=outputs[linear.out_size])


if __name__ == "__main__":
    main()
