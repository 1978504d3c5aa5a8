"""Products with matrices in the formats of GGUF files, as shares of the rate at which this machine reads memory.

    python -m benchmarks.kernels.gguf_linear [--threads N] [--rounds N] [--rows M] [--format Q8_0] [--json FILE]

One matrix of 49152 outputs and 1536 inputs, which no cache holds, of random bytes, and the kernels of this CPU's best
level. ``fetched``: the next panel is, in advance; ``left`` leaves that to the CPU. The two take turns within each
round; the least time of the rounds.
"""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Sequence
from functools import partial

import torch

from benchmarks.kernels.machine_rates import least_s, read_rate
from benchmarks.load.report import Row, table, write_json
from mmserve.checkpoint.gguf.tensor_types import QUANTIZED
from mmserve.model_backend.platforms.cpu.library import build, levels
from mmserve.model_backend.platforms.cpu.linear import gguf_weights
from mmserve.model_backend.platforms.cpu.threads import set_threads
from mmserve.model_backend.platforms.cpu.ways.candidates import Product, Way, default, install

OUTPUTS, INPUTS = 49152, 1536
ROWS = (1, 4, 8, 16)
_AHEAD_NBYTES = {"left": 0, "fetched": 16 << 10}
_HALVES = {"Q4_K": 2, "Q5_K": 2, "Q4_1": 2, "Q5_1": 2}
"""A block's first numbers in half precision; one, if not here. Q6_K has its own behind the others."""


def main() -> None:
    """Print a line for each format and number of rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int, action="append", choices=ROWS, help="repeatable")
    parser.add_argument("--format", action="append", choices=tuple(QUANTIZED), help="repeatable")
    parser.add_argument("--json", help="also write the rows here")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    kernels = build.build_and_load(levels.of_this_cpu()[0])
    set_threads(kernels, options.threads)
    found: list[Row] = []
    with torch.inference_mode():
        for kind in options.format or QUANTIZED:
            packed = gguf_weights.pack([(kind, _random(kind))])
            found += [
                _measured(kernels, kind, packed, rows, options.threads, options.rounds) for rows in options.rows or ROWS
            ]
    print(table(found))
    write_json(options.json, found)


def _random(kind: str) -> torch.Tensor:
    """Rows of a file, with scales that are small numbers."""
    shape = QUANTIZED[kind]
    blocks = torch.randint(256, (OUTPUTS, INPUTS // shape.block, shape.nbytes), dtype=torch.uint8)
    upper = [shape.nbytes - 1] if kind == "Q6_K" else [2 * half + 1 for half in range(_HALVES.get(kind, 1))]
    blocks[..., upper] &= 0x1F
    return blocks.flatten(1)


def _measured(kernels: ctypes.CDLL, kind: str, packed: torch.Tensor, rows: int, threads: int, rounds: int) -> Row:
    x, out = torch.randn(rows, INPUTS), torch.empty(rows, OUTPUTS)
    product = Product(gguf_weights.FORMAT, INPUTS, OUTPUTS)

    def run(way: Way) -> None:
        install(kernels, {(product, rows): way})
        addresses: Sequence[int | None] = (x.data_ptr(), packed.data_ptr(), product.format, None, out.data_ptr())
        kernels.mm_linear(*addresses, rows, INPUTS, OUTPUTS, 0)

    ways = {name: default(product.format, rows)._replace(ahead_nbytes=nbytes) for name, nbytes in _AHEAD_NBYTES.items()}
    spent = least_s({name: partial(run, way) for name, way in ways.items()}, rounds)
    install(kernels, {})
    read = read_rate(threads, 2)
    row: Row = {"format": kind, "rows": rows, "reads GB/s": read / 1e9}
    for name, spent_s in spent.items():
        row |= {f"{name} ms": 1e3 * spent_s, f"{name}, share": packed.nbytes / spent_s / read}
    return row


if __name__ == "__main__":
    main()
