"""The last head of the new layer tells cells and words which picture they are about.

The cells of a picture attend to its mark: that is one position before them on the time axis, the marks before it are
several. Words attend to "first", "second" or "third" before them. What is copied stands along three directions that
neither cells nor words have.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from training.qwen3_vl.several.questions import PLACES
from training.qwen3_vl.warm import PRESENCE, solved, towards, words
from training.stages.models import SHAPE
from training.tokens import FIRST, NEXT, SECOND, Coder

MARKS = (FIRST, SECOND, NEXT)
PAIRS = (6, 9)
"""Frequencies of the time axis: 0.18 and 0.075 radians a position."""
CALLED = 30  # a frequency that hardly turns
TEXTS = (
    *(f"In the {place} picture, what colour is it? Look at the {place} picture. Which" for place in PLACES),
    *(f"Which picture has a star? the {place}" for place in PLACES),
    "Which picture shows a circle?",
)
"""More words than those of questions on one picture."""
SAID = 1.5  # length of what is added


def silent(seen: Tensor, count: int) -> Tensor:
    """(n, D) -> (count, D) orthonormal directions along which the rows are shortest."""
    _, vectors = torch.linalg.eigh(seen.double().T @ seen.double())
    return vectors[:, :count].T.float()


@torch.no_grad()
def plant(text: Any, cells: Tensor, colours: Tensor, coder: Coder) -> None:
    """Sets the head. `cells` and `colours`: (n, D) the two streams of cells."""
    layer, size = text.layers[0], SHAPE.width // SHAPE.heads
    attention, embedding, base = layer.self_attn, text.embed_tokens.weight, SHAPE.width - size
    # "third" is three tokens, of which the middle one hardly stands elsewhere.
    called = [ids[len(ids) // 2] for ids in (coder.exact(f" {place}") for place in PLACES)]
    known = sorted({*words(coder), *MARKS, *(token for written in TEXTS for token in coder.ids(written))})
    directions = silent(torch.cat([cells, colours, embedding[known]]), len(MARKS))
    given = torch.cat([cells, embedding[known]])
    query = torch.tensor([0.0, 0, 0, 0, -1, 1]).repeat(len(given), 1)
    key = torch.tensor([0.0, 0, 0, 0, -1, 0]).repeat(len(given), 1)
    value = torch.zeros(len(given), len(MARKS))
    (sine, cosine), (slow_sine, slow_cosine) = (towards(pair, 1.0) for pair in PAIRS)
    query[: len(cells)] = torch.tensor([cosine, -sine, slow_cosine, -slow_sine, 0.5, 0])
    for number, (mark, word) in enumerate(zip(MARKS, called, strict=True)):
        row = len(cells) + known.index(mark)
        key[row], value[row, number] = torch.tensor([1.0, 0, 1, 0, 1, 0]), 1.0
        row = len(cells) + known.index(word)
        key[row], value[row, number] = torch.tensor([0.0, 0, 0, 0, -1, 1.5]), 1.0
    own = slice(base, base + size)
    places = [base + place for pair in PAIRS for place in (pair, pair + size // 2)] + [base + PRESENCE, base + CALLED]
    scale = layer.input_layernorm.weight
    for part, wanted in ((attention.q_proj, query), (attention.k_proj, key)):
        part.weight[own] = 0.0
        part.weight[places] = solved(given, wanted, scale)
    attention.o_proj.weight[:, :base] *= SHAPE.heads / (SHAPE.heads - 1)
    attention.o_proj.weight[:, own] = 0.0
    attention.v_proj.weight[base : base + len(MARKS)] = solved(given, value, scale)
    attention.o_proj.weight[:, base : base + len(MARKS)] = SAID * directions.T
