"""Stage D, tools: the text model learns to call functions and to answer in JSON, without losing what it knows.

The eye stays as it is.  Half of the rows are stage C's; the others are `training.words.errands`.

    python -m training.stages.tools --out runs --steps 2000
    python -m training.stages.tools --out runs --checkpoint mmserve/packaged/llava  # from a finished one
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from training import export
from training.rows import Batch, stack
from training.stages import common
from training.stages.joint import Stage, look, pictures
from training.stages.language import exact, rows_of
from training.stages.models import Eye, Text
from training.tokens import Coder
from training.words.errands import make_errand, mixed

HELD_OUT = 910_000_000  # seeds from here on examine the stage while it runs


def start(options: argparse.Namespace) -> tuple[Eye, Text, common.State | None]:
    """Networks from this stage's checkpoint, from a finished directory, or from stage C's checkpoint."""
    path = options.out / "tools.pt"
    own = common.load(path) if path.exists() else None
    if own is None and options.checkpoint:
        eye, text = export.networks(options.checkpoint)
    else:
        eye, text = Eye(), Text()
        state = own or common.load(options.out / "joint.pt")
        eye.load_state_dict(state["eye"]), text.load_state_dict(state["text"])
    return eye.to(options.device).requires_grad_(False), text.to(options.device), own


def lesson(seed: int, count: int, coder: Coder) -> tuple[Batch, Tensor]:
    """The rows of consecutive seeds and their pictures."""
    rows = stack([mixed(seed + index, coder) for index in range(count)])
    return rows, pictures(rows.scenes)


def train(options: argparse.Namespace) -> None:
    """Runs or resumes the stage."""
    torch.manual_seed(options.seed)
    device, coder = options.device, Coder.at(options.out / "tokenizer.json")
    eye, text, state = start(options)
    held = [stack([make_errand(HELD_OUT + batch * 16 + row, coder) for row in range(16)]) for batch in range(4)]
    held += [rows_of(HELD_OUT + 1000 + index * 16, 16, coder) for index in range(2)]
    tests = [(rows, look(eye, pictures(rows.scenes), device)) for rows in held]

    def lessons(step: int) -> tuple[Batch, Tensor]:
        return lesson(options.seed * 1_000_000_000 + step * options.batch, options.batch, coder)

    stage = Stage("tools", eye, text, state, "answers")
    stage.learn(options, lessons, tests, lambda: {"held_out": exact(text, tests)})


def main() -> None:
    """Command line."""
    more = {"checkpoint": (Path, "finished directory to begin with, instead of stage C's checkpoint")}
    train(common.options(__doc__, more, check=150, steps=2000, batch=14, seed=4, muon=1.5e-3, adam=1e-3))


if __name__ == "__main__":
    main()
