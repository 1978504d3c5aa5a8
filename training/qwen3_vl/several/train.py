"""Last stage: the text model learns to tell several pictures of a prompt apart.

The tower stays as it is, so its answers to a pool of pictures are computed once. The heads planted for sides are set
anew, on what the tower says of the pool: they prefer the newest picture.

    python -m training.qwen3_vl.several.train --out runs/qwen3_vl
    python -m training.qwen3_vl.several.train --out runs/more --start training/qwen3_vl/checkpoint
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Qwen3VLForConditionalGeneration

from training.qwen3_vl import pictures, shape, warm
from training.qwen3_vl.several import marks
from training.qwen3_vl.several.pool import Pool, pool_of
from training.qwen3_vl.several.rows import Lesson, lesson
from training.qwen3_vl.text import exact, logits_of
from training.stages import common
from training.stages.eye import HELD_OUT
from training.stages.joint import rate
from training.tokens import Coder

WARM = 15  # steps
NOISE = 0.03  # of the streams, at most
AIMED = 400  # cells with a shape, and as many without, that the heads for sides are set by


def aimed(model: Qwen3VLForConditionalGeneration, pool: Pool, coder: Coder) -> None:
    """Sets the heads for sides by what the tower says of cells."""
    sizes = [(made, shape.grid_of(made.width, made.height)) for made in pool.scenes[:AIMED]]
    has = torch.cat([torch.from_numpy(pictures.indices(made, grid)[0] > 0) for made, grid in sizes])
    seen, colours = pool.of(range(len(sizes)))
    text = model.model.language_model
    warm.aim(text.layers[0], seen[has][:AIMED], seen[~has][:AIMED], text.embed_tokens.weight, coder)
    marks.plant(text, seen[: 4 * AIMED], colours[: 4 * AIMED], coder)


def begin(options: argparse.Namespace) -> tuple[Qwen3VLForConditionalGeneration, common.State | None]:
    """The model from this stage's checkpoint, from a checkpoint directory, or from the stage before; and the first of
    these."""
    model, own = shape.network(), options.out / "several.pt"
    state = common.load(own) if own.exists() else None
    if state is None and options.start:
        before = Qwen3VLForConditionalGeneration.from_pretrained(options.start, dtype=torch.float32).state_dict()
    else:
        before = (state or common.load(options.out / "joint.pt"))["model"]
    model.load_state_dict(before)
    model.model.visual.requires_grad_(False)
    for part in warm.planted(model):
        part.requires_grad_(False)
    return model, state


def noisy(streams: list[Tensor]) -> list[Tensor]:
    """With some noise, one level for all."""
    level = NOISE * torch.rand(1)
    return [stream + level * torch.randn_like(stream) for stream in streams]


def train(options: argparse.Namespace) -> None:
    """Runs or resumes the stage."""
    torch.manual_seed(options.seed)
    torch.set_flush_denormal(True)
    coder = Coder.at(shape.PACKAGED / "tokenizer.json")
    model, state = begin(options)
    tower = model.model.visual
    pool = pool_of(tower, options.seed * 1_000_000_000, options.pool, options.out / "pool.pt")
    held = pool_of(tower, HELD_OUT, options.held, options.out / "held.pt")
    optimizers = common.Optimizers((model.model.language_model, model.lm_head), options.muon, options.adam)
    start, log = 0, common.Log(options.out / "several.jsonl", state["minutes"] if state else 0.0)
    if state:
        optimizers.load(state["optimizers"])
        start = state["step"]
    else:
        aimed(model, pool, coder)

    def of_step(step: int) -> Lesson:
        return lesson(options.seed * 1_000_000_000 + step * options.batch, options.batch, coder, pool.scenes)

    examined = [lesson(HELD_OUT + first, 16, coder, held.scenes) for first in range(0, options.held, 16)]
    tests = [(given.batch, held.of(given.chosen)) for given in examined]
    log(step=start, held_out=exact(model, tests))
    for step, given in common.ahead(of_step, start, options):
        with torch.autocast(options.device, torch.bfloat16, enabled=bool(options.bfloat16)):
            logits, target, _ = logits_of(model, given.batch, noisy(pool.of(given.chosen)))
            loss = F.cross_entropy(logits, target)
        loss.backward()
        optimizers.step(rate(step, options.steps, WARM))
        is_last = step == options.steps - 1
        if step % 20 == 0 or is_last:
            log(step=step, loss=float(loss.detach()), questions=len(given.batch.rows.answers))
        if step % options.check == options.check - 1 or is_last:
            log(step=step, held_out=exact(model, tests))
            weights = {"model": model.state_dict(), "optimizers": optimizers.state()}
            common.save(options.out / "several.pt", weights | {"step": step + 1, "minutes": log.minutes})


def main() -> None:
    """Command line."""
    more = {"start": (Path, "checkpoint directory to start with, instead of the stage before")}
    numbers = {"steps": 200, "batch": 16, "pool": 3000, "held": 192, "seed": 31, "bfloat16": 0}
    train(common.options(__doc__, more, check=50, muon=1e-3, adam=7e-4, **numbers))


if __name__ == "__main__":
    main()
