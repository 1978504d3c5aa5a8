"""Rows with several pictures have transformers' own positions, and the cells of the pictures that they name."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import numpy as np
import torch
from torch import nn

from training import tokens
from training.qwen3_vl import pictures, shape
from training.qwen3_vl.several import rows
from training.qwen3_vl.several.pool import see
from training.tokens import Coder

POOL = [pictures.scene(seed) for seed in range(30)]


@pytest.fixture(scope="module")
def packaged() -> Coder:
    return Coder.at(shape.PACKAGED / "tokenizer.json")


def test_positions_of_rows_are_those_of_transformers(packaged: Coder) -> None:
    with torch.device("meta"):
        model = shape.network().model
    counts = set()
    for seed in range(12):
        row, chosen = rows.make_row(seed, packaged, POOL)
        end = next((at for at, segment in enumerate(row.segments) if segment > 1), len(row.segments))
        ids = torch.tensor([row.tokens[:end]])  # the prefix and one segment are an ordinary row
        grids = [(1, *(2 * side for side in shape.grid_of(made.width, made.height))) for made in row.scenes]
        expected, _ = model.get_rope_index(ids, (ids == tokens.IMAGE).int(), image_grid_thw=torch.tensor(grids))
        found = np.array([row.positions, *zip(*row.axes, strict=True)])[:, :end]
        assert found.tolist() == expected[:, 0].tolist()
        assert row.scenes == [POOL[index] for index in chosen]
        counts.add(len(chosen))
    assert counts == {1, 2, 3}


def test_pictures_stand_in_the_order_of_their_rows(packaged: Coder) -> None:
    made = rows.lesson(5, 8, packaged, POOL)
    grids = [shape.grid_of(scene.width, scene.height) for scene in made.batch.scenes]
    assert made.batch.scenes == [POOL[index] for index in made.chosen]
    assert (made.batch.rows.tokens == tokens.IMAGE).sum() == sum(height * width for height, width in grids)


class Shadow(nn.Module):
    """A tower whose rows are the mean of a cell's patches."""

    def forward(self, patches: torch.Tensor, grids: torch.Tensor) -> object:
        rows_ = patches.unflatten(0, (-1, shape.MERGE**2)).mean(1)[:, :256]
        return type("Seen", (), {"pooler_output": rows_, "deepstack_features": [-rows_]})


def test_every_picture_of_the_pool_keeps_its_own_rows() -> None:
    together = see(Shadow(), POOL)
    for scene, streams in zip(POOL, together, strict=True):
        (alone,) = see(Shadow(), [scene])
        assert torch.equal(streams, alone)
        assert torch.equal(streams[0], -streams[1])
    assert len({streams[0].sum().item() for streams in together}) > 20
