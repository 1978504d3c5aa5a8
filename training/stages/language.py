"""Stage B, language: trains the text model on oracle picture tokens, with no pixels and no vision tower.

Scenes become codes (`training.pictures.labels`) directly; noise, doubt and leaks between patches are added so that an
imperfect eye will do later. Only answers are learned. It can run beside stage A: the code is what joins the two.

    python -m training.stages.language --out runs --steps 3000
"""

from __future__ import annotations

import argparse
from collections import defaultdict

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.pictures import labels
from training.pictures.labels import GROUPS, Array
from training.rows import Batch, make_row, stack
from training.stages import common, prior
from training.stages.models import Text
from training.tokens import Coder


def clean_tokens(batch: Batch) -> Array:
    """(scenes, P, CODE) exact codes."""
    if not batch.scenes:
        return np.zeros((0, 64, labels.CODE), np.float32)
    index = np.stack([labels.indices(scene) for scene in batch.scenes])
    place = np.stack([labels.positions(scene) for scene in batch.scenes])
    return labels.assemble(index, place, np.array([labels.ground(scene) for scene in batch.scenes]))


def blur(code: Array, seed: int) -> Array:
    """What an imperfect eye might say: doubts about classes, leaks into the next patch, uneven strength."""
    generator = np.random.default_rng(seed)
    count, patches, _ = code.shape
    out = code.copy()
    held = code[..., GROUPS["kind"].start] == 0
    for group, chance in (("kind", 0.12), ("colour", 0.06), ("size", 0.06), *((name, 0.06) for name in labels.TALLIES)):
        part = out[..., GROUPS[group]]
        doubt = (generator.random((count, patches)) < chance) & held
        weight = generator.uniform(0, 0.4, (count, patches, 1)) * doubt[..., None]
        other = np.eye(part.shape[-1])[generator.integers(0, part.shape[-1], (count, patches))]
        part[:] = part * (1 - weight) + other * weight
        part *= generator.uniform(0.85, 1.1, (count, patches, 1))
    leak = (generator.random((count, patches)) < 0.05) & held
    for scene, patch in zip(*np.nonzero(leak), strict=True):
        near = patch + generator.choice((-1, 1, -8, 8))
        if 0 <= near < patches and not held[scene, near]:
            share = generator.uniform(0.05, 0.3)
            parts = slice(0, GROUPS["size"].stop)
            out[scene, near, parts] += share * (out[scene, patch, parts] - out[scene, near, parts])
    return out.astype(np.float32)


def oracle_tokens(batch: Batch, basis: Tensor, seed: int | None) -> Tensor:
    """(scenes, P, D) picture tokens from the scenes; noisy with a seed, exact without."""
    code = clean_tokens(batch)
    if seed is None:
        return torch.from_numpy(code) @ basis
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.from_numpy(blur(code, seed)) @ basis
    level = torch.rand(tokens.shape[0], 1, 1, generator=generator) * 0.06
    return tokens + level * torch.randn(tokens.shape, generator=generator)


def embed(text: Text, batch: Batch, pictures: Tensor) -> Tensor:
    """(n, L, D): token embeddings with picture tokens (scenes, P, D) in their slots."""
    device = pictures.device
    x = text.embed(torch.from_numpy(batch.tokens).to(device))
    flat = x.reshape(-1, x.shape[-1])
    slots = torch.from_numpy(batch.slots).to(device)
    return flat.index_copy(0, slots, pictures.reshape(-1, x.shape[-1])).view_as(x)


def logits_of(text: Text, run: nn.Module, batch: Batch, pictures: Tensor) -> tuple[Tensor, Tensor, np.ndarray]:
    """Logits (answers' tokens, vocabulary), their targets, and their flat places."""
    device = pictures.device
    x = embed(text, batch, pictures)
    hidden = run(x, torch.from_numpy(batch.positions).to(device), torch.from_numpy(batch.mask).to(device))
    places = np.flatnonzero(batch.targets.reshape(-1) >= 0)
    target = torch.from_numpy(batch.targets.reshape(-1)[places]).to(device)
    return text.lm_head(hidden.flatten(0, 1)[torch.from_numpy(places).to(device)]), target, places


def answer_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Mean cross entropy over answer tokens."""
    return F.cross_entropy(logits, target)


@torch.no_grad()
def exact(text: Text, batches: list[tuple[Batch, Tensor]]) -> dict[str, float]:
    """Share of answers right to the last token, per kind and in all (teacher-forced, which equals greedy)."""
    right: dict[str, list[bool]] = defaultdict(list)
    for batch, pictures in batches:
        logits, target, places = logits_of(text, text, batch, pictures)
        hit = np.ones(batch.targets.size, bool)
        hit[places] = (logits.argmax(-1) == target).cpu().numpy()
        for kind, first, last in batch.answers:
            right[kind].append(bool(hit[first : last + 1].all()))
    out = {kind: round(float(np.mean(values)), 3) for kind, values in sorted(right.items())}
    return out | {"all": round(float(np.mean([v for values in right.values() for v in values])), 4)}


def rows_of(first: int, count: int, coder: Coder, loose: float = 0.0) -> Batch:
    """The stacked rows of consecutive seeds."""
    return stack([make_row(first + index, coder, loose) for index in range(count)])


def train(options: argparse.Namespace) -> None:
    """Runs or resumes the stage."""
    torch.manual_seed(options.seed)
    path, device = options.out / "language.pt", options.device
    coder = Coder.at(options.out / "tokenizer.json")
    text = Text()
    prior.plant(text, coder)
    text.to(device)
    basis = torch.from_numpy(labels.basis())
    optimizers = common.Optimizers((text,), options.muon, options.adam)
    start, log = 0, common.Log(options.out / "language.jsonl")
    if path.exists():
        state = common.load(path)
        text.load_state_dict(state["text"]), optimizers.load(state["optimizers"])
        start, log = state["step"], common.Log(options.out / "language.jsonl", state["minutes"])
    run = torch.compile(text) if options.compile else text
    held = [rows_of(900_000_000 + index * 16, 16, coder) for index in range(6)]
    tests = [(batch, oracle_tokens(batch, basis, index).to(device)) for index, batch in enumerate(held)]

    def lessons(step: int) -> tuple[Batch, Tensor]:
        seed = options.seed * 1_000_000_000 + step * options.batch
        batch = rows_of(seed, options.batch, coder, loose=0.15)
        return batch, oracle_tokens(batch, basis, seed % 2**31)

    for step, (batch, pictures) in common.ahead(lessons, start, options):
        logits, target, _ = logits_of(text, run, batch, pictures.to(device))
        loss = answer_loss(logits, target)
        loss.backward()
        norm = optimizers.step(common.curve(step, options.steps, options.warm, options.hold))
        if step % 20 == 0 or step == options.steps - 1:
            log(step=step, loss=float(loss.detach()), norm=norm, questions=len(batch.answers))
        if step % options.check == options.check - 1 or step == options.steps - 1:
            log(step=step, held_out=exact(text, tests))
            weights = {"text": text.state_dict(), "optimizers": optimizers.state()}
            common.save(path, weights | {"step": step + 1, "minutes": log.minutes})


def main() -> None:
    """Command line."""
    train(common.options(__doc__, check=100, steps=2600, batch=16, seed=2, muon=2e-3, adam=1e-3, warm=400, hold=0.4))


if __name__ == "__main__":
    main()
