"""A head start for the text model: a word begins by looking up the patches that show it.

First layer: the query of "red", "star" or "7" equals the key of the patches whose oracle code says so, and all that the
code says there is copied to the word, the position most loudly: up and down can be told from the order of the tokens as
well, left and right cannot, and stayed unread when the code was quiet.  Patches look up their picture's mark.  Second
layer: words look up patches again, which now know their picture; "more" and "fewer" look for the picture with the
larger and the smaller tally; the token that opens the answer gathers from such words, and so do "top" and "bottom",
after which the side is said.  Third layer: so does "the", after which the picture is said.  The head's rows of the
answer words hold the directions of what they mean.  Only initial values; everything is trained from there.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from training.pictures.labels import GROUPS, basis
from training.pictures.world import BACKGROUND_NAMES, CLASSES, COLOUR_NAMES, GRID, SHAPES, SIZES
from training.stages.models import Text
from training.tokens import ASSISTANT, FIRST, SECOND, Coder
from training.words.phrases import plural


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


def copying(*directions: Tensor, quietly: float = 0.15) -> Tensor:
    """(D, D) what is copied of everything quietly, of some orthonormal directions in full."""
    loud = torch.stack(directions)
    return quietly * torch.eye(loud.shape[1]) + (1 - quietly) * loud.T @ loud


def clear(embedding: Tensor, directions: Tensor) -> None:
    """Takes orthonormal directions (n, D) out of the embedding (rows, D), in place."""
    embedding -= embedding @ directions.T @ directions


def apart(directions: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """(count, D) random orthonormal directions, orthogonal to some (n, D)."""
    drawn = torch.randn(count, directions.shape[1], generator=generator)
    clear(drawn, directions)
    return torch.linalg.qr(drawn.T)[0].T


def plant(text: Text, coder: Coder) -> None:
    """The whole head start."""
    generator = torch.Generator().manual_seed(5)
    rows, embedding = torch.from_numpy(basis()), text.model["embed_tokens"].weight.data  # type: ignore[union-attr]
    first, second, content = own = apart(rows, 3, generator)
    which = (second - first) / 2**0.5
    known = {name: torch.from_numpy(direction).float() for name, direction in meanings().items()}
    known |= {"first": -which, "second": which}
    for name, direction in known.items():
        text.lm_head.weight.data[single(name, coder)] += 0.3 * direction
    spellings = [[name, plural(name)] for name in SHAPES] + [[name] for name in COLOUR_NAMES]
    named = [[token for name in names for token in single(name, coder)] for names in spellings]
    amounts = [single(word, coder) for word in ("more", "fewer")]
    unit = embed_anew(embedding, rows, own, [token for ids in (*named, *amounts) for token in ids])
    looks = [(unit[ids], known[names[0]][None]) for names, ids in zip(spellings, named, strict=True)]
    marks = (rows[GROUPS["kind"]], torch.stack([first, 2 * second]))  # the second picture's patches see both
    attend(text, 0, [*looks, marks], copying(known["right"], known["top"]), generator)
    count = torch.arange(1, 8)[:, None]
    tallies = [(rows[GROUPS["total"]] * by).sum(0)[None] / 2 for by in (count, 8 - count)]
    compare = [(unit[ids], tally) for ids, tally in zip(amounts, tallies, strict=True)]
    opening = unit[[ASSISTANT, *single("top", coder), *single("bottom", coder)]] / 2
    copy = copying(known["right"], known["top"], which)
    attend(text, 1, [*looks, *compare, (opening, 2 * content[None])], copy, generator)
    attend(text, 2, [(unit[single("the", coder)], 3 * content[None])], copy, generator)


def embed_anew(embedding: Tensor, code: Tensor, own: Tensor, named: list[int]) -> Tensor:
    """Frees an embedding (in place) of the code's directions and three more; gives the marks two of these and the
    named words a share of the third.  Returns its rows at length one, without that share."""
    size = embedding.norm(dim=1).mean()
    clear(embedding, torch.cat([code, own]))
    embedding[[FIRST, SECOND]] = size * own[:2]
    unit = embedding / embedding.norm(dim=1, keepdim=True)
    embedding[named] += 0.6 * size * own[2]
    return unit
