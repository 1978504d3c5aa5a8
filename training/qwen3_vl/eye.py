"""First stage: the tower, set by regression to write the oracle code of every cell in its two streams.

Six layers are the packaged tower's (`transplant`); two say cleanly what those see, and count (`counting`); the mergers'
last weights are a ridge regression too. Nothing is trained by descent, so it takes a few minutes.

python -m training.qwen3_vl.eye --out runs/qwen3_vl
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.pictures import labels
from training.qwen3_vl import counting, pictures, shape, transplant
from training.qwen3_vl.pictures import CHANNELS, Pictures
from training.stages import common
from training.stages.eye import HELD_OUT

RIDGE = 3.0


def lesson(first: int, count: int) -> Pictures:
    """The pictures of consecutive seeds, those of one size together."""
    drawn = [pictures.scene(first + index) for index in range(count)]
    return pictures.draw(sorted(drawn, key=lambda made: shape.grid_of(made.width, made.height)))


def look(tower: Any, data: Pictures) -> list[Tensor]:
    """The streams (C, 256)."""
    out = tower(pictures.pixels(data.patches), data.grids)
    return [out.pooler_output.float(), *(part.float() for part in out.deepstack_features)]


@contextlib.contextmanager
def inputs(module: nn.Module) -> Iterator[list[Tensor]]:
    """Collects what a module reads."""
    found: list[Tensor] = []
    hook = module.register_forward_pre_hook(lambda _, given: found.append(given[0].float()))
    yield found
    hook.remove()


@torch.no_grad()
def read(tower: Any, module: nn.Module, drawn: list[Pictures]) -> list[Tensor]:
    """What a module of the tower reads of each batch."""
    with inputs(module) as found:
        for data in drawn:
            tower(pictures.pixels(data.patches), data.grids)
    return found


def wanted(data: Pictures) -> Tensor:
    """(N, counting.WANTED) what the probes should say of patches."""
    channel = {name: row.repeat_interleave(shape.MERGE**2) for name, row in zip(CHANNELS, data.index, strict=True)}
    grounds = F.one_hot(data.grounds.repeat_interleave(shape.MERGE**2), 4)
    first = torch.zeros(len(grounds), 1, dtype=torch.long)
    first[F.pad(data.grids.prod(1).cumsum(0)[:-1], (1, 0))] = 1
    at = data.centres[:, None].long()
    ones = [at * F.one_hot(channel[name], count)[:, 1:] for name, count in (("kind", 7), ("colour", 9), ("size", 3))]
    return torch.cat([at, *ones, grounds, first], 1)


def set_layers(tower: Any, drawn: list[Pictures]) -> None:
    """The last two layers."""
    cleaner, counter = tower.blocks[-2:]
    features = torch.cat(read(tower, cleaner.norm1, drawn))
    target = torch.cat([wanted(data) for data in drawn])
    directions, size = counting.silent(features, counting.DIRECTIONS)
    loud = counting.LOUD * size
    counting.clean(cleaner, counting.probes(features, target), directions, loud)
    features = torch.cat(read(tower, counter.norm1, drawn))
    said = counting.normed(features) @ directions[: counting.WANTED].T
    seen = target.sum(0)
    counting.count(counter, torch.where(seen > 0, (said * target).sum(0) / seen, 1.0), directions, loud)
    centres = torch.cat([data.centres for data in drawn])
    features = torch.cat(read(tower, counter.norm2, drawn))[centres]
    index = torch.cat([data.index.repeat_interleave(shape.MERGE**2, 1) for data in drawn], 1)[:, centres]
    tallies = index[[CHANNELS.index(name) for name in labels.TALLIES]].T
    counting.tell(counter, features, tallies, directions, loud)
    for merger in transplant.mergers(tower):
        counting.gather(merger, directions)


@torch.no_grad()
def set_mergers(tower: Any, drawn: list[Pictures]) -> None:
    """The mergers' last weights."""
    basis = torch.from_numpy(labels.basis())
    targets = [torch.cat(parts) for parts in zip(*(pictures.streams(data.codes, basis) for data in drawn), strict=True)]
    weight = torch.cat([torch.where(data.index[0] > 0, 1.0, 0.1) for data in drawn])[:, None].double()
    for merger, target in zip(transplant.mergers(tower), targets, strict=True):
        ones = F.pad(torch.cat(read(tower, merger.linear_fc2, drawn)), (0, 1), value=1.0).double()
        gram = ones.T @ (ones * weight) + RIDGE * torch.eye(ones.shape[1], dtype=torch.double)
        found = torch.linalg.solve(gram, (ones * weight).T @ target.double()).float()
        merger.linear_fc2.weight.copy_(found[:-1].T)
        merger.linear_fc2.bias.copy_(found[-1])


@torch.no_grad()
def measure(tower: Any, drawn: list[Pictures]) -> dict[str, float]:
    """Shares of right classes, colours, sizes and tallies of shapes, of right backgrounds, of faultless pictures."""
    basis = torch.from_numpy(labels.basis())
    right: dict[str, list[Tensor]] = {name: [] for name in (*CHANNELS, "ground", "picture")}
    for data in drawn:
        found = {
            name: stream @ basis[labels.GROUPS[name]].T
            for names, stream in zip(pictures.STREAMS, look(tower, data), strict=True)
            for name in names
        }
        at = data.index[0] > 0
        for name, index in zip(CHANNELS, data.index, strict=True):
            right[name].append((found[name].argmax(-1) + (name in labels.TALLIES) == index)[at])
        right["ground"].append(found["ground"].argmax(-1) == data.grounds)
        cells = (data.grids[:, 1] * data.grids[:, 2] // shape.MERGE**2).tolist()
        same = (found["kind"].argmax(-1) == data.index[0]).split(cells)
        right["picture"].append(torch.stack([part.all() for part in same]))
    return {name: round(float(torch.cat(values).float().mean()), 3) for name, values in right.items()}


def train(options: argparse.Namespace) -> None:
    """Makes the tower."""
    torch.manual_seed(options.seed)
    torch.set_flush_denormal(True)
    log = common.Log(options.out / "eye.jsonl")
    tower = shape.network().model.visual
    transplant.start(tower, shape.PACKAGED)
    first = options.seed * 1_000_000_000
    drawn = [lesson(first + step * options.batch, options.batch) for step in range(options.steps)]
    set_layers(tower, drawn)
    set_mergers(tower, drawn)
    held_out = [lesson(HELD_OUT + start, min(64, options.held)) for start in range(0, options.held, 64)]
    log(step=options.steps, held_out=measure(tower, held_out))
    common.save(options.out / "eye.pt", {"eye": tower.state_dict()})


def main() -> None:
    """Command line."""
    train(common.options(__doc__, check=1, steps=24, batch=48, held=256, seed=11))


if __name__ == "__main__":
    main()
