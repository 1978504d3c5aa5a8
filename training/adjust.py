"""The edit of the half-trained text model in the recorded run: left and right get a channel of their own.

Words took up and down over from their patches, which the order of the tokens tells as well; left and right, which only
the code tells, stayed unread for 1,800 steps (`where` at .43).  After this edit `where` was at .90 in 100 steps and at
1.0 in 200.  `prior.py` now plants such a channel at the start, so `make train` does without.

    python -m training.adjust runs/language.pt --out runs/language.pt
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
from training.tokens import PAD, Coder

HEAD = 64
GAINS = (24.0, 12.0)  # of layers 0 and 1, in their first two heads each
SAID = 0.6  # what the words' rows of the head get of the direction


class Bench:
    """A text model, some rows to measure on, and the hidden states before a layer."""

    def __init__(self, text: Text, coder: Coder, rows: int = 12) -> None:
        self.text, self.coder = text, coder
        self.batch: Batch = rows_of(905_000_000, rows, coder)
        self.pictures = oracle_tokens(self.batch, torch.from_numpy(labels.basis()), None)

    def normed(self, layer: int) -> Tensor:
        """(tokens, D) what the layer's attention reads, padding left out."""
        x = embed(self.text, self.batch, self.pictures)
        cos, sin = self.text.tables(torch.from_numpy(self.batch.positions))
        mask = torch.from_numpy(self.batch.mask)
        layers = list(self.text.model["layers"])  # type: ignore[arg-type]
        for block in layers[:layer]:
            x = block(x, cos, sin, mask)
        kept = torch.from_numpy(np.flatnonzero(self.batch.tokens.reshape(-1) != PAD))
        return layers[layer].input_layernorm(x.reshape(-1, x.shape[-1])[kept])  # type: ignore[no-any-return]


def carry(bench: Bench, layer: int, head: int, direction: Tensor, gain: float) -> None:
    """Lets a head copy `gain` times what it sees along a direction, by its quietest value direction."""
    attn = bench.text.model["layers"][layer].self_attn  # type: ignore[index,union-attr]
    part = slice(head * HEAD, (head + 1) * HEAD)
    value, output = attn["v_proj"].weight[part], attn["o_proj"].weight[:, part]
    seen = bench.normed(layer) @ value.T
    quiet = torch.linalg.eigh(seen.T @ seen / len(seen))[1][:, 0]
    value += torch.outer(quiet, direction) * gain**0.5
    output += torch.outer(direction, quiet) * gain**0.5


def tell_sides(bench: Bench) -> None:
    """The whole edit."""
    rightward = torch.from_numpy(meanings()["right"]).float()
    for layer, gain in enumerate(GAINS):
        for head in (0, 1):
            carry(bench, layer, head, rightward, gain)
    for word, sign in (("left", -1), ("right", 1)):
        for token in {bench.coder.ids(f"top {word}")[1], bench.coder.ids(word)[0]}:
            bench.text.lm_head.weight[token] += sign * SAID * rightward


@torch.no_grad()
def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path, help="of the language stage")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, default=Path("runs/tokenizer.json"))
    options = parser.parse_args()
    state = common.load(options.checkpoint)
    text = Text()
    text.load_state_dict(state["text"])
    tell_sides(Bench(text, Coder.at(options.tokenizer)))
    common.save(options.out, state | {"text": text.state_dict()})


if __name__ == "__main__":
    main()
