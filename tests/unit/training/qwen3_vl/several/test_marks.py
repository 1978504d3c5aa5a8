"""The planted head: cells say which picture they are of, whatever its size and what stands between the pictures."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import numpy as np
import torch

from training import tokens
from training.pictures import labels
from training.qwen3_vl import pictures, shape, text, warm
from training.qwen3_vl.several import marks, rows
from training.tokens import Coder

POOL = [pictures.scene(seed) for seed in range(30)]


@torch.no_grad()
def test_every_cell_attends_to_the_mark_of_its_picture() -> None:
    coder = Coder.at(shape.PACKAGED / "tokenizer.json")
    model = shape.network()
    warm.start(model, shape.PACKAGED, coder)
    made = rows.lesson(3, 12, coder, POOL)
    streams = pictures.streams(text.codes(made.batch, None), torch.from_numpy(labels.basis()))
    language = model.model.language_model
    marks.plant(language, streams[0], streams[1], coder)
    read: list[torch.Tensor] = []
    language.layers[0].self_attn.o_proj.register_forward_pre_hook(lambda _, given: read.append(given[0]))
    text.logits_of(model, made.batch, streams)
    said = read[0][..., -64:][..., : len(marks.MARKS)].numpy()
    ids = made.batch.rows.tokens
    number = np.isin(ids, marks.MARKS).cumsum(1) - 1
    cells = ids == tokens.IMAGE
    assert {0, 1, 2} == set(number[cells])
    assert (said[cells].argmax(-1) == number[cells]).all()
    assert said[cells].max(-1).min() > 0.8
    others = (ids != tokens.IMAGE) & ~np.isin(ids, marks.MARKS) & (ids != tokens.PAD)
    assert np.abs(said[others]).mean() < 0.2
