"""Edits of a half-trained text model, made twice in the recorded run when measurements showed a quantity was missing.

`first` (join, step 150): one head of layer 0 attends less sharply, so that its weight tells how many patches match; and
"top" / "bottom" ask in layer 1 as the opening of the answer does, for the second word of a place.
`second` (join, step 600): the left-right position, which words did not take over from their patches while up-down they
did, gets its own channel through layers 0 and 1; the soft head's mass on objects gets another.

    python -m training.adjust second runs/joint.pt --out runs/joint.pt
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training import common, labels
from training.language import embed, oracle_tokens, rows_of
from training.models import Text
from training.prior import meanings
from training.rows import Batch
from training.tokens import ASSISTANT, IMAGE, PAD, Coder

SOFT = 3  # the head of layer 0 that is made softer
SOFTER = 0.15
HEAD = 64


class Bench:
    """A text model, some rows to measure on, and the hidden states before a layer."""

    def __init__(self, text: Text, coder: Coder, rows: int = 12) -> None:
        self.text, self.coder = text, coder
        self.batch: Batch = rows_of(905_000_000, rows, coder)
        self.pictures = oracle_tokens(self.batch, torch.from_numpy(labels.basis()), None)

    def hidden(self, layer: int) -> Tensor:
        """(tokens, D) residuals before a layer, padding left out."""
        x = embed(self.text, self.batch, self.pictures)
        cos, sin = self.text.tables(torch.from_numpy(self.batch.positions))
        mask = torch.from_numpy(self.batch.mask)
        for block in list(self.text.model["layers"])[:layer]:  # type: ignore[arg-type]
            x = block(x, cos, sin, mask)
        return x.reshape(-1, x.shape[-1])[self.pick(lambda tokens: tokens != PAD)]

    def pick(self, test: object) -> Tensor:
        """Indices of the tokens that pass a test."""
        return torch.from_numpy(np.flatnonzero(test(self.batch.tokens.reshape(-1))))  # type: ignore[operator]

    def normed(self, layer: int) -> Tensor:
        """(tokens, D) what the layer's attention reads."""
        return self.text.model["layers"][layer].input_layernorm(self.hidden(layer))  # type: ignore[index,union-attr]


def soften(text: Text) -> None:
    """Makes the soft head's scores small enough that its weight grows with the number of matches."""
    text.model["layers"][0].self_attn["q_proj"].weight[SOFT * HEAD : (SOFT + 1) * HEAD] *= SOFTER  # type: ignore[index,union-attr]


def carry(bench: Bench, layer: int, head: int, source: Tensor, target: Tensor, gain: float) -> None:
    """Lets a head write `gain` times what it sees along `source` to `target`, by its quietest value direction."""
    attn = bench.text.model["layers"][layer].self_attn  # type: ignore[index,union-attr]
    part = slice(head * HEAD, (head + 1) * HEAD)
    value, output = attn["v_proj"].weight[part], attn["o_proj"].weight[:, part]
    seen = bench.normed(layer) @ value.T
    quiet = torch.linalg.eigh(seen.T @ seen / len(seen))[1][:, 0]
    value += torch.outer(quiet, source) * gain**0.5
    output += torch.outer(target, quiet) * gain**0.5


def first(bench: Bench) -> None:
    """See the module's text."""
    soften(bench.text)
    flat = bench.batch.tokens.reshape(-1)
    read = bench.normed(1)
    kept = flat[flat != PAD]
    weight = bench.text.model["layers"][1].self_attn["q_proj"].weight  # type: ignore[index,union-attr]
    mean, opening = read[kept != IMAGE].mean(0), read[kept == ASSISTANT].mean(0)
    for word in ("top left", "bottom left"):
        own = read[kept == bench.coder.ids(word)[0]].mean(0)
        weight += torch.outer(weight @ opening - weight @ own, own - mean) / ((own - mean) @ own)


def quiet_direction(bench: Bench) -> Tensor:
    """(D,) the direction with least in it before layers 1 and 2, outside the oracle code."""
    rows = torch.from_numpy(labels.basis())
    before, after = bench.hidden(1), bench.hidden(2)
    spread = before.T @ before / len(before) + after.T @ after / len(after)
    return torch.linalg.eigh(spread + 1e-6 * torch.eye(len(spread)) + 1e4 * rows.T @ rows)[1][:, 0]


def second(bench: Bench) -> None:
    """See the module's text."""
    rightward = torch.from_numpy(meanings()["right"]).float()
    for layer, gain in ((0, 12.0), (1, 3.0)):
        for head in (0, 1):
            carry(bench, layer, head, rightward, rightward, gain)
    shapes = torch.from_numpy(labels.basis())[labels.GROUPS["kind"]][1:7].sum(0)
    mass = quiet_direction(bench)
    soften(bench.text)
    carry(bench, 0, SOFT, shapes, mass, 20.0)
    for head in (0, 1):
        carry(bench, 1, head, mass, mass, 3.0)
    for word, sign in (("left", -1), ("right", 1)):
        for token in {bench.coder.ids(f"top {word}")[1], bench.coder.ids(word)[0]}:
            bench.text.lm_head.weight[token] += sign * 0.3 * rightward


@torch.no_grad()
def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("edit", choices=("first", "second"))
    parser.add_argument("checkpoint", type=Path, help="of the language or the joint stage")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, default=Path("runs/tokenizer.json"))
    options = parser.parse_args()
    state = common.load(options.checkpoint)
    text = Text()
    text.load_state_dict(state["text"])
    bench = Bench(text, Coder.at(options.tokenizer), rows=16 if options.edit == "first" else 12)
    {"first": first, "second": second}[options.edit](bench)
    common.save(options.out, state | {"text": text.state_dict()})


if __name__ == "__main__":
    main()
