"""Rows have transformers' own positions; a few steps of every stage lead to a checkpoint that the server can read."""

from __future__ import annotations

import argparse
import io
import random
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from PIL import Image

from mmserve.checkpoint import load
from training import tokens
from training.pictures.scenes import Item, Scene
from training.qwen3_vl import evaluate, eye, rows, schedule, shape, text
from training.qwen3_vl.questions import samples, side
from training.qwen3_vl.several import train
from training.tokens import Coder


@pytest.fixture(scope="module")
def packaged() -> Coder:
    return Coder.at(text.PACKAGED / "tokenizer.json")


@pytest.mark.parametrize("seed", range(4))
def test_positions_of_rows_are_those_of_transformers(packaged: Coder, seed: int) -> None:
    row = rows.make_row(seed, packaged)
    end = row.segments.index(2)  # the prefix and one segment are an ordinary row
    ids = torch.tensor([row.tokens[:end]])
    grids = [(1, *(2 * side for side in shape.grid_of(scene.width, scene.height))) for scene in row.scenes]
    with torch.device("meta"):
        model = shape.network().model
    expected, _ = model.get_rope_index(ids, (ids == tokens.IMAGE).int(), image_grid_thw=torch.tensor(grids))
    found = np.array([row.positions, *zip(*row.axes, strict=True)])[:, :end]
    assert found.tolist() == expected[:, 0].tolist()


def test_the_outermost_shape_is_asked_for_where_it_is_clear() -> None:
    scene = Scene(240, 240, "white", "plain", 0)
    scene.shapes = [
        Item("star", "red", "small", 0.2, 0.5, 0.1, 0.1),
        Item("circle", "blue", "small", 0.5, 0.52, 0.1, 0.1),
        Item("cross", "pink", "small", 0.8, 0.54, 0.1, 0.1),
    ]
    turns = [side(scene, random.Random(seed)) for seed in range(40)]
    assert {turn for turn in turns if turn} == {
        ("Which shape is left of all others?", "star"),
        ("Which shape is right of all others?", "cross"),
    }


def test_a_few_steps_of_every_stage_lead_to_a_checkpoint(tmp_path: Path) -> None:
    options = argparse.Namespace(
        out=tmp_path, steps=2, batch=2, fresh=2, held=2, seed=1, muon=1e-3, adam=1e-3, warm=1, hold=0.4, check=2,
        device="cpu", workers=0, bfloat16=0, eye=None,
    )  # fmt: skip
    eye.train(options)
    text.train(options)
    options.eye = tmp_path / "eye.pt"
    text.train(options)
    options.pool, options.held, options.start = 40, 16, None
    train.train(options)
    options.steps = 3
    train.train(options)
    made = tmp_path / "checkpoint"
    assert schedule.export(tmp_path / "several.pt", made) < 20e6
    spec = load.load(made)
    assert spec.family == "qwen3_vl"
    assert spec.vision is not None
    assert spec.vision.streams == 1 + len(shape.DEEPSTACK)
    drawn = evaluate.questions(("side", "which picture"), 1, 1, 1.0)
    assert [len(sample.images) > 1 for sample in drawn] == [False, True]
    assert len(list(evaluate.directory(made)(drawn))) == 2


def test_held_out_questions_repeat_and_keep_to_their_kinds_and_ratio() -> None:
    drawn = list(samples(6, 3, ("count", "side"), longest=2.0))
    assert [sample.kind for sample in drawn] == ["count", "side"] * 3
    assert len({sample.images[0] for sample in drawn}) == 6
    assert drawn == list(samples(6, 3, ("count", "side"), longest=2.0))
    for sample in drawn:
        with Image.open(io.BytesIO(sample.images[0])) as image:
            assert max(image.size) >= 2 * min(image.size)
