"""The text model's start: a new first layer that looks for the outermost shape, and the packaged text model above it.

The packaged model has one axis and no norms of queries and keys; the norms start with the size that those have there.
In the new layer the words "left", "right", "above" and "below" look for shapes, most for those far along their axis: a
pair of numbers that turns by w a position scores -sin(w (distance - MIDDLE)) from word to cell, which falls with the
distance over all that occur. A pair on the time axis, which a picture's cells have in common, prefers the newest of
several pictures. What class is there is copied to the word.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Qwen3VLForConditionalGeneration

from training import export
from training.pictures import labels
from training.pictures.world import BACKGROUND_NAMES
from training.qwen3_vl import rows
from training.qwen3_vl.pictures import CHANNELS, code, streams
from training.qwen3_vl.questions import SIDES
from training.qwen3_vl.shape import NEW_LAYERS
from training.stages import language
from training.stages.models import SHAPE, Text
from training.stages.prior import single
from training.tokens import IMAGE, Coder

PAIRS = (7, 8)
"""Frequencies that turn with the row and the column: 0.13 and 0.10 radians a position."""
TIME_PAIR = 9
"""A frequency of the time axis: 0.075 radians a position."""
NEAR = 10.0  # positions from a question's word back to the start of the newest picture, about
PICTURE = 1.2  # weight of the newest picture, beside an axis
PRESENCE = 31  # a frequency that hardly turns
MIDDLE = 9.0  # positions from a question's word to a cell, about
RIDGE = 0.1  # of the regression
SHARP = 2.4  # size of queries and keys
WORDS_FROM = 60  # rows
COPIED = 2.0  # length of what is added to the word


def sizes(text: Text, coder: Coder) -> list[tuple[float, float]]:
    """Root mean squares of each layer's queries and keys on a few rows."""
    batch = language.rows_of(5, 4, coder)
    pictures = language.oracle_tokens(batch, torch.from_numpy(labels.basis()), None)
    found: dict[nn.Module, float] = {}

    def note(module: nn.Module, _: object, out: Tensor) -> None:
        found[module] = float(out.square().mean().sqrt())

    layers: Any = text.model["layers"]
    parts = [(layer.self_attn["q_proj"], layer.self_attn["k_proj"]) for layer in layers]
    hooks = [part.register_forward_hook(note) for pair in parts for part in pair]
    with torch.no_grad():
        language.logits_of(text, text, batch, pictures)
    for hook in hooks:
        hook.remove()
    return [(found[query], found[key]) for query, key in parts]


def renamed(name: str) -> str:
    """Of a weight of the packaged text model: the same weight's name in this model."""
    if name.startswith("model.layers."):
        _, _, layer, rest = name.split(".", 3)
        return f"model.language_model.layers.{int(layer) + NEW_LAYERS}.{rest}"
    return name.replace("model.", "model.language_model.", 1)


def start(model: Qwen3VLForConditionalGeneration, packaged: Path, coder: Coder) -> None:
    """Fills the text model from the packaged model's directory, and plants the heads for sides."""
    _, text = export.networks(packaged)
    own = {renamed(name): value for name, value in text.state_dict().items()}
    missing, unknown = model.load_state_dict(own, strict=False)
    new = tuple(f"model.language_model.layers.{layer}." for layer in range(NEW_LAYERS))
    lost = [name for name in missing if "language_model" in name and "_norm." not in name and not name.startswith(new)]
    if unknown or lost:
        raise ValueError(f"the packaged model does not fit: {unknown or lost}")
    layers = model.model.language_model.layers
    for layer, (query, key) in zip(layers[NEW_LAYERS:], sizes(text, coder), strict=True):
        layer.self_attn.q_norm.weight.data.fill_(query)
        layer.self_attn.k_norm.weight.data.fill_(key)
    plant(layers[0], model.model.language_model.embed_tokens.weight, coder)


def planted(model: Qwen3VLForConditionalGeneration) -> list[Any]:
    """What `plant` sets and training leaves as it is, for it would soon be lost: queries and keys of the new layer."""
    attention = model.model.language_model.layers[0].self_attn
    return [attention.q_proj, attention.k_proj, attention.q_norm, attention.k_norm]


def words(coder: Coder) -> list[int]:
    """The tokens that rows are made of, pictures apart."""
    seen = {token for seed in range(WORDS_FROM) for token in rows.make_row(seed, coder).tokens}
    return sorted(seen - {IMAGE})


def cells(basis: Tensor) -> tuple[Tensor, Tensor]:
    """(n, D) what the layer reads of cells with a shape, of every class, size, tally and background; and of those
    without."""
    ranges = {"kind": range(1, 7), "colour": (1,), "size": (1, 2), "tallies": range(1, 8)}
    shapes = [(*about, *[tally] * len(labels.TALLIES)) for *about, tally in itertools.product(*ranges.values())]
    found = []
    for index in (np.array(shapes).T, np.zeros((len(CHANNELS), 1), np.int64)):
        codes = np.concatenate([code(index, ground) for ground in range(len(BACKGROUND_NAMES))])
        found.append(streams(torch.from_numpy(codes), basis)[0])
    return found[0], found[1]


def solved(given: Tensor, wanted: Tensor, scale: Tensor) -> Tensor:
    """(n, D) inputs and (n, m) outputs -> the weights (m, D) that fit best; `scale` (D,): of the layer's norm."""
    given = given / given.square().mean(-1, keepdim=True).sqrt() * scale
    ridge = torch.eye(given.shape[1]) * RIDGE
    return torch.linalg.solve(given.T @ given + ridge, given.T @ wanted).T


def towards(pair: int, distance: float) -> tuple[float, float]:
    """The angle that a frequency turns by over a distance, as sine and cosine."""
    angle = distance * SHAPE.theta ** (-pair / (SHAPE.width // SHAPE.heads // 2))
    return math.sin(angle), math.cos(angle)


@torch.no_grad()
def aim(layer: Any, shapes: Tensor, nothing: Tensor, embedding: Tensor, coder: Coder) -> None:
    """Sets the new layer's queries and keys, see the module's text. `shapes` and `nothing`: (n, D) what the layer reads
    of cells with and without a shape. Seven numbers of every query and key: a pair for each axis, and PRESENCE, which
    is negative for all that neither looks for shapes nor is one: these meet each other."""
    attention, size = layer.self_attn, SHAPE.width // SHAPE.heads
    known = words(coder)
    given = torch.cat([shapes, nothing, embedding[known]])
    query, key = (torch.tensor([0.0, 0, 0, 0, 0, 0, -1]).repeat(len(given), 1) for _ in range(2))
    key[: len(shapes)] = torch.tensor([1.0, 0, 1, 0, PICTURE, 0, 1])
    sine, cosine = towards(TIME_PAIR, NEAR)
    for word, (axis, sign) in SIDES.items():
        turn = towards(PAIRS[axis], MIDDLE)
        for token in set(single(word, coder)) & set(known):
            row = query[len(shapes) + len(nothing) + known.index(token)]
            row[2 * axis], row[2 * axis + 1] = sign * turn[0], sign * turn[1]
            row[4], row[5], row[6] = PICTURE * cosine, -PICTURE * sine, 0.5
    places = [place for pair in (*PAIRS, TIME_PAIR) for place in (pair, pair + size // 2)] + [PRESENCE]
    for part, norm, wanted in ((attention.q_proj, attention.q_norm, query), (attention.k_proj, attention.k_norm, key)):
        part.weight.zero_(), norm.weight.fill_(SHARP)
        found = solved(given, wanted, layer.input_layernorm.weight)
        for base in range(0, SHAPE.width, size):
            part.weight[[base + place for place in places]] = found


@torch.no_grad()
def plant(layer: Any, embedding: Tensor, coder: Coder) -> None:
    """The new layer: its queries and keys, and that the class of what they find is copied."""
    attention, size = layer.self_attn, SHAPE.width // SHAPE.heads
    basis = torch.from_numpy(labels.basis())
    aim(layer, *cells(basis), embedding, coder)
    kinds = basis[labels.GROUPS["kind"]][1:7]
    attention.o_proj.weight.zero_()
    layer.mlp.down_proj.weight.mul_(0.1)
    for base in range(0, SHAPE.width, size):
        attention.v_proj.weight[base : base + len(kinds)] = kinds
        attention.o_proj.weight[:, base : base + len(kinds)] = COPIED / 7 / SHAPE.heads * kinds.T
