"""Third stage: the text model learns to answer, from exact codes with noise or, with ``--eye``, from real pictures.

The tower and the heads planted for sides stay as they are. Without ``--eye`` it can run beside the other stages; a
second run with it goes on from there.

    python -m training.qwen3_vl.text --out runs/qwen3_vl
    python -m training.qwen3_vl.text --out runs/qwen3_vl --eye runs/qwen3_vl/eye.pt --steps 240
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Qwen3VLForConditionalGeneration

from training.pictures import labels
from training.pictures.world import BACKGROUND_NAMES
from training.qwen3_vl import pictures, shape, warm
from training.qwen3_vl.eye import look
from training.qwen3_vl.pictures import Pictures
from training.qwen3_vl.rows import Batch, rows_of
from training.qwen3_vl.shape import PACKAGED
from training.stages import common
from training.stages.eye import HELD_OUT
from training.stages.joint import rate
from training.stages.language import blur
from training.tokens import IMAGE, Coder

WARM = 15  # steps
Lesson = tuple[Batch, Pictures | Tensor]  # rows, and their pictures or codes (cells, CODE)


def codes(batch: Batch, seed: int | None) -> Tensor:
    """(C, CODE) of all the rows' pictures; noisy with a seed, exact without."""
    found = [np.zeros((0, labels.CODE), np.float32)]
    for number, scene in enumerate(batch.scenes):
        index = pictures.indices(scene, shape.grid_of(scene.width, scene.height))
        exact = pictures.code(index, BACKGROUND_NAMES.index(scene.background))
        found.append(exact if seed is None else blur(exact[None], seed + number)[0])
    return torch.from_numpy(np.concatenate(found))


def streams(lesson: Pictures | Tensor, tower: nn.Module, basis: Tensor, noise: float) -> list[Tensor]:
    """The two streams (C, 256): what the tower sees, or what a perfect one would with some noise."""
    if isinstance(lesson, Pictures):
        with torch.no_grad():
            return look(tower, lesson)
    exact = pictures.streams(lesson, basis)
    return [stream + noise * torch.rand(1) * torch.randn_like(stream) for stream in exact]


def logits_of(
    model: Qwen3VLForConditionalGeneration, batch: Batch, seen: list[Tensor]
) -> tuple[Tensor, Tensor, np.ndarray]:
    """Logits (answers' tokens, vocabulary), their targets, and their flat places."""
    rows, text = batch.rows, model.model.language_model
    ids = torch.from_numpy(rows.tokens)
    at = ids == IMAGE
    x = text.embed_tokens(ids)
    x = x.masked_scatter(at[..., None], seen[0].to(x.dtype))
    hidden = text(
        inputs_embeds=x,
        position_ids=torch.from_numpy(batch.positions),
        attention_mask=torch.from_numpy(rows.mask),
        visual_pos_masks=at,
        deepstack_visual_embeds=seen[1:],
        use_cache=False,
    ).last_hidden_state
    places = np.flatnonzero(rows.targets.reshape(-1) >= 0)
    target = torch.from_numpy(rows.targets.reshape(-1)[places])
    return model.lm_head(hidden.flatten(0, 1)[torch.from_numpy(places)]).float(), target, places


@torch.no_grad()
def exact(model: Qwen3VLForConditionalGeneration, tests: Iterable[tuple[Batch, list[Tensor]]]) -> dict[str, float]:
    """Share of answers right to the last token, per kind and in all (teacher-forced, which equals greedy)."""
    right: dict[str, list[bool]] = defaultdict(list)
    for batch, seen in tests:
        logits, target, places = logits_of(model, batch, seen)
        hit = np.ones(batch.rows.targets.size, bool)
        hit[places] = (logits.argmax(-1) == target).numpy()
        for kind, first, last in batch.rows.answers:
            right[kind].append(bool(hit[first : last + 1].all()))
            right["all"].append(right[kind][-1])
    return {kind: round(float(np.mean(values)), 3) for kind, values in sorted(right.items())}


def begin(options: argparse.Namespace, coder: Coder) -> tuple[Qwen3VLForConditionalGeneration, common.State | None]:
    """The model from this stage's checkpoint, the one before it, or the packaged model; and the first of these."""
    model = shape.network()
    own, before = options.out / ("joint.pt" if options.eye else "text.pt"), options.out / "text.pt"
    state = common.load(own) if own.exists() else None
    if state or before.exists():
        model.load_state_dict((state or common.load(before))["model"])
    else:
        warm.start(model, PACKAGED, coder)
    if options.eye and not state:
        model.model.visual.load_state_dict(common.load(options.eye)["eye"])
    model.model.visual.requires_grad_(False)
    for part in warm.planted(model):
        part.requires_grad_(False)
    return model, state


def train(options: argparse.Namespace) -> None:
    """Runs or resumes the stage."""
    torch.manual_seed(options.seed)
    torch.set_flush_denormal(True)
    coder = Coder.at(PACKAGED / "tokenizer.json")
    model, state = begin(options, coder)
    tower, name = model.model.visual, "joint" if options.eye else "text"
    basis = torch.from_numpy(labels.basis())
    optimizers = common.Optimizers((model.model.language_model, model.lm_head), options.muon, options.adam)
    start, log = 0, common.Log(options.out / f"{name}.jsonl", state["minutes"] if state else 0.0)
    if state:
        optimizers.load(state["optimizers"])
        start = state["step"]

    def lesson(first: int, count: int, seed: int | None) -> Lesson:
        batch = rows_of(first, count, coder)
        return batch, pictures.draw(batch.scenes) if options.eye else codes(batch, seed)

    def of_step(step: int) -> Lesson:
        first = (options.seed + bool(options.eye)) * 1_000_000_000 + step * options.batch
        return lesson(first, options.batch, first % 2**31)

    held = [lesson(HELD_OUT + first, min(16, options.held), None) for first in range(0, options.held, 16)]
    tests = [(batch, streams(seen, tower, basis, 0.0)) for batch, seen in held]
    log(step=start, held_out=exact(model, tests))
    for step, (batch, seen) in common.ahead(of_step, start, options):
        with torch.autocast(options.device, torch.bfloat16, enabled=bool(options.bfloat16)):
            logits, target, _ = logits_of(model, batch, streams(seen, tower, basis, 0.06))
            loss = F.cross_entropy(logits, target)
        loss.backward()
        optimizers.step(rate(step, options.steps, WARM))
        is_last = step == options.steps - 1
        if step % 20 == 0 or is_last:
            log(step=step, loss=float(loss.detach()), questions=len(batch.rows.answers))
        if step % options.check == options.check - 1 or is_last:
            log(step=step, held_out=exact(model, tests))
            weights = {"model": model.state_dict(), "optimizers": optimizers.state()}
            common.save(options.out / f"{name}.pt", weights | {"step": step + 1, "minutes": log.minutes})


def main() -> None:
    """Command line."""
    more = {"eye": (Path, "checkpoint of the tower, to learn from real pictures")}
    numbers = {"steps": 160, "batch": 16, "held": 128, "seed": 12, "muon": 1e-3, "adam": 7e-4, "bfloat16": 0}
    train(common.options(__doc__, more, check=40, **numbers))


if __name__ == "__main__":
    main()
