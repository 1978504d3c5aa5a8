"""Pictures that the tower has seen: the stage for several pictures combines them anew in every row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from training.pictures.scenes import Scene
from training.qwen3_vl import pictures, shape
from training.qwen3_vl.eye import look
from training.stages import common

AT_ONCE = 32  # pictures that the tower looks at


@dataclass(frozen=True)
class Pool:
    """``streams``: of each scene's picture, (2, cells, 256) in bfloat16."""

    scenes: list[Scene]
    streams: list[Tensor]

    def of(self, chosen: Sequence[int]) -> list[Tensor]:
        """The two streams (cells, 256) of pictures behind one another."""
        return list(torch.cat([self.streams[index] for index in chosen], 1).float())


@torch.no_grad()
def see(tower: nn.Module, scenes: list[Scene]) -> list[Tensor]:
    """The streams of the scenes' pictures. Those of one size are looked at together."""
    grids = [shape.grid_of(made.width, made.height) for made in scenes]
    order = sorted(range(len(scenes)), key=lambda index: grids[index])
    found: dict[int, Tensor] = {}
    for start in range(0, len(order), AT_ONCE):
        part = order[start : start + AT_ONCE]
        both = torch.stack(look(tower, pictures.draw([scenes[index] for index in part]))).bfloat16()
        sizes = [grids[index][0] * grids[index][1] for index in part]
        found |= zip(part, both.split(sizes, 1), strict=True)
    return [found[index].clone() for index in range(len(scenes))]


def pool_of(tower: nn.Module, first: int, count: int, kept: Path) -> Pool:
    """The pool of consecutive seeds; `kept`: where its streams are written, and read again."""
    scenes = [pictures.scene(first + index) for index in range(count)]
    if not kept.exists():
        common.save(kept, {"streams": see(tower, scenes)})
    streams = common.load(kept)["streams"]
    if len(streams) != count:
        raise ValueError(f"{kept} has {len(streams)} pictures, not {count}; remove it to draw them again")
    return Pool(scenes, streams)
