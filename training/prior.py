"""A head start for the text model: a word begins by looking up the patches that show it.

First layer: the query of "red", "star" or "7" equals the key of the patches whose oracle code says so, and all that the
code says there is copied to the word, the position more strongly: up and down can be told from the order of the tokens
as well, left and right cannot, and stayed unread when the code was all there was and quiet.  Second layer: the token
that opens the answer gathers from such words, and so do "top" and "bottom", after which the side is said.  The head's
rows of the answer words hold the code's directions.  Only initial values; everything is trained from there.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from training.labels import GROUPS, basis
from training.models import Text
from training.phrases import plural
from training.tokens import ASSISTANT, Coder
from training.world import BACKGROUND_NAMES, CLASSES, COLOUR_NAMES, GRID, SHAPES, SIZES


def meanings() -> dict[str, np.ndarray]:
    """Words and their unit directions (256,)."""
    rows = basis()
    out = {}
    for group, names in (("kind", CLASSES[1:]), ("colour", COLOUR_NAMES), ("size", SIZES)):
        for index, name in enumerate(names, 1):
            out[name] = rows[GROUPS[group].start + index]
    for index, name in enumerate(BACKGROUND_NAMES):
        out[name] = rows[GROUPS["ground"].start + index]
    for name in SHAPES:
        out[plural(name)] = out[name]
    for axis, low, high in (("x", "left", "right"), ("y", "top", "bottom")):
        tilt = (np.arange(GRID) - 3.5) @ rows[GROUPS[axis]]
        out[high] = tilt / np.linalg.norm(tilt)
        out[low] = -out[high]
    out["above"], out["below"] = out["top"], out["bottom"]
    return out


def single(name: str, coder: Coder) -> list[int]:
    """The ids of a word with and without a leading space, where each is one token."""
    spellings = (coder.tokenizer.encode(written, add_special_tokens=False).ids for written in (name, f" {name}"))
    return [ids[0] for ids in spellings if len(ids) == 1]


def rotation(width: int, generator: torch.Generator) -> Tensor:
    """A random orthogonal matrix (width, width)."""
    return torch.linalg.qr(torch.randn(width, width, generator=generator))[0]


def slow(text: Text) -> Tensor:
    """(heads, n) rows of the projections that the rotary embedding turns slowly, head by head."""
    size = text.shape.width // text.shape.heads
    inside = torch.arange(size)
    inside = inside[inside % (size // 2) >= size // 4]
    return torch.arange(text.shape.heads)[:, None] * size + inside


Match = tuple[Tensor, Tensor]  # directions that ask (n, D), directions that are found (m, D)


def attend(text: Text, layer: int, matches: list[Match], copy: Tensor, generator: torch.Generator) -> None:
    """Makes every head of a layer look from the asking to the found directions, and copy what is there, as changed by
    `copy` (D, D)."""
    attn = text.model["layers"][layer].self_attn  # type: ignore[index,union-attr]
    rows = slow(text)
    codes = rotation(rows.shape[1], generator)
    for name, side in (("q_proj", 0), ("k_proj", 1)):
        weight = attn[name].weight.data.mul_(0.5)
        for code, match in zip(codes, matches, strict=False):
            for head in rows:
                weight[head] += 0.75 * code[:, None] * match[side].sum(0)[None]
    carry = rotation(text.shape.width, generator)
    attn["v_proj"].weight.data.copy_(carry)
    attn["o_proj"].weight.data.copy_(copy @ carry.T)


def basis_free(embedding: Tensor) -> Tensor:
    """Takes the code's directions out of the embedding (in place); returns its rows at length one."""
    rows = torch.from_numpy(basis())
    embedding -= embedding @ rows.T @ rows
    return embedding / embedding.norm(dim=1, keepdim=True)


def plant(text: Text, coder: Coder) -> None:
    """The whole head start."""
    generator = torch.Generator().manual_seed(5)
    unit = basis_free(text.model["embed_tokens"].weight.data)  # type: ignore[arg-type,union-attr]
    known = meanings()
    for name, direction in known.items():
        text.lm_head.weight.data[single(name, coder)] += 0.3 * torch.from_numpy(direction).float()
    spellings = [[name, plural(name)] for name in SHAPES] + [[name] for name in COLOUR_NAMES]
    tokens = [[token for name in names for token in single(name, coder)] for names in spellings]
    found = [torch.from_numpy(known[names[0]]).float()[None] for names in spellings]
    place = torch.from_numpy(np.stack([known["right"], known["top"]])).float()
    copy = 0.15 * torch.eye(text.shape.width) + 0.85 * place.T @ place
    attend(text, 0, [(unit[ids], shown) for ids, shown in zip(tokens, found, strict=True)], copy, generator)
    words = unit[[token for ids in tokens for token in ids]]
    asking = unit[[ASSISTANT, *single("top", coder), *single("bottom", coder)]] / 2
    attend(text, 1, [(asking, words)], copy, generator)
