"""The tower's start: the packaged model's, which sees nearly as well in Qwen3-VL's shape as in its own.

Four things differ. The packaged tower norms its input: the mean's removal and the mean length go into the weights of
patches and positions. Its table of 8 by 8 positions is resampled to a picture's grid. It has no rotary embedding: every
head's queries and keys are turned (which leaves their products as they are) so that what matters most is in the
numbers that a rotary embedding turns least. It has a class token, a sink for attention: the layer that counts by it is
left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from training import export
from training.qwen3_vl import pictures, shape
from training.stages import models

FIRST, COUNT = 700_000_000, 64
"""Seeds of the pictures that tell the mean length of an embedded patch."""


def slow(size: int) -> list[int]:
    """The numbers of a head, those first that the tower's rotary embedding turns least."""
    axis = size // 4
    return [part + rate for rate in reversed(range(axis)) for part in range(0, size, axis)]


def turned(query: nn.Linear, key: nn.Linear, heads: int) -> list[Tensor]:
    """Weights (width, width) and biases of queries, then of keys, with the same products, as the module's text says."""
    found = [torch.zeros_like(part) for linear in (query, key) for part in (linear.weight, linear.bias)]
    size = query.weight.shape[0] // heads
    for first in range(0, size * heads, size):
        own = slice(first, first + size)
        triangles = [torch.linalg.qr(linear.weight[own].double().T)[1] for linear in (query, key)]
        left, values, right = torch.linalg.svd(triangles[0] @ triangles[1].T)
        places = [first + place for place in slow(size)]
        for number, (linear, triangle, side) in enumerate(zip((query, key), triangles, (left.T, right), strict=True)):
            turn = values.sqrt()[:, None] * side @ torch.linalg.inv(triangle).T
            found[2 * number][places] = (turn @ linear.weight[own].double()).float()
            found[2 * number + 1][places] = (turn @ linear.bias[own].double()).float()
    return found


def embed(tower: Any, packaged: models.Vision) -> None:
    """Patches and positions, normed on average."""
    norm, embeddings = packaged.pre_layrnorm, packaged.embeddings
    patches, positions = embeddings.patch_embedding.weight, embeddings.position_embedding.weight[1:]
    patches, positions = patches - patches.mean(0), positions - positions.mean(1, keepdim=True)
    drawn = pictures.draw([pictures.scene(FIRST + number) for number in range(COUNT)]).patches.float() / 127.5 - 1
    length = (drawn @ patches.T + positions.repeat(len(drawn) // len(positions) + 1, 1)[: len(drawn)]).std(1).mean()
    scale = norm.weight / length
    weight = tower.patch_embed.proj.weight  # (width, colours, frames, rows, columns)
    one = (scale[:, None] * patches).view(*weight.shape[:2], 1, shape.PATCH, shape.PATCH)
    weight.copy_(one.expand_as(weight) / weight.shape[2])
    tower.patch_embed.proj.bias.copy_(norm.bias)
    tower.pos_embed.weight.copy_(scale * positions)


@torch.no_grad()
def start(tower: Any, directory: Path) -> None:
    """Fills the tower but its last layers and its mergers from the packaged model's directory."""
    eye, _ = export.networks(directory)
    packaged = eye.vision_tower["vision_model"]
    assert isinstance(packaged, models.Vision)
    embed(tower, packaged)
    for block, layer in zip(tower.blocks[: -shape.OWN_LAYERS], packaged.encoder["layers"], strict=False):
        old = layer.self_attn
        query, query_bias, key, key_bias = turned(old.q_proj, old.k_proj, block.attn.num_heads)
        block.attn.qkv.weight.copy_(torch.cat([query, key, old.v_proj.weight]))
        block.attn.qkv.bias.copy_(torch.cat([query_bias, key_bias, old.v_proj.bias]))
        pairs = ((block.norm1, layer.layer_norm1), (block.norm2, layer.layer_norm2), (block.attn.proj, old.out_proj),
                 (block.mlp.linear_fc1, layer.mlp["fc1"]), (block.mlp.linear_fc2, layer.mlp["fc2"]))  # fmt: skip
        for new, part in pairs:
            new.load_state_dict(part.state_dict())
    for merger in mergers(tower):
        nn.init.normal_(merger.linear_fc1.weight, std=merger.linear_fc1.in_features**-0.5)


def mergers(tower: Any) -> list[Any]:
    """The prompt's, then DeepStack's."""
    return [tower.merger, *tower.deepstack_merger_list]
