"""Stage C, the join: the text model goes on learning on what the finished eye says of real pictures.

The eye stays as it is.  The rate falls in a straight line to nothing, so the last steps matter most.

    python -m training.stages.joint --out runs --steps 3000
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from training.pictures import labels
from training.pictures.scenes import Scene
from training.pictures.world import PATCHES
from training.rows import Batch
from training.stages import common
from training.stages.eye import batch, measure, photograph
from training.stages.language import answer_loss, exact, logits_of, rows_of
from training.stages.models import Eye, Text
from training.tokens import Coder


def rate(step: int, total: int, warm: int = 40) -> float:
    """A short warm-up, then a straight line to nothing."""
    return min((step + 1) / warm, max(0.0, 1 - step / total))


def pictures(scenes: list[Scene]) -> Tensor:
    """(scenes, P, 768): the scenes' pictures."""
    return torch.from_numpy(np.array([photograph(scene) for scene in scenes], np.float32).reshape(-1, PATCHES, 768))


@torch.no_grad()
def look(eye: Eye, patches: Tensor, device: str) -> Tensor:
    """(n, P, 768) -> (n, P, D): what the eye says of pictures."""
    if not len(patches):
        return torch.zeros(0, PATCHES, labels.WIDTH, device=device)
    return torch.cat([eye(part.to(device))[1] for part in patches.split(32)])


def start(options: argparse.Namespace) -> tuple[Eye, Text, common.State | None]:
    """Networks from this stage's checkpoint, or from the ones before it."""
    eye, text = Eye(), Text()
    path = options.out / "joint.pt"
    own = common.load(path) if path.exists() else None
    eye.load_state_dict((own or common.load(options.out / "tally.pt"))["eye"])
    text.load_state_dict((own or common.load(options.out / "language.pt"))["text"])
    return eye.to(options.device).requires_grad_(False), text.to(options.device), own


@dataclass(frozen=True)
class Stage:
    """A stage that trains the text model on real pictures.

    ``name``: of its checkpoint and log. ``counted``: what the log calls the answers of a step.
    """

    name: str
    eye: Eye
    text: Text
    state: common.State | None
    counted: str

    def learn(
        self,
        options: argparse.Namespace,
        lessons: Callable[[int], tuple[Batch, Tensor]],
        tests: list[tuple[Batch, Tensor]],
        first_log: Callable[[], dict[str, object]],
    ) -> None:
        """From the checkpoint, or step 0, to the last step.

        ``lessons(step)``: rows and their pictures; ``tests``: held-out rows and what the eye says of them.
        """
        text, state = self.text, self.state
        optimizers = common.Optimizers((text,), options.muon, options.adam)
        log = common.Log(options.out / f"{self.name}.jsonl", state["minutes"] if state else 0.0)
        begin = state["step"] if state else 0
        if state:
            optimizers.load(state["optimizers"])
        read = torch.compile(text) if options.compile else text
        log(step=begin, **first_log())
        for step, (rows, patches) in common.ahead(lessons, begin, options):
            logits, target, _ = logits_of(text, read, rows, look(self.eye, patches, options.device))
            loss = answer_loss(logits, target)
            loss.backward()
            optimizers.step(rate(step, options.steps))
            is_last = step == options.steps - 1
            if step % 20 == 0 or is_last:
                log(step=step, loss=float(loss.detach()), **{self.counted: len(rows.answers)})
            if step % options.check == options.check - 1 or is_last:
                log(step=step, held_out=exact(text, tests))
                weights = {"eye": self.eye.state_dict(), "text": text.state_dict(), "optimizers": optimizers.state()}
                common.save(options.out / f"{self.name}.pt", weights | {"step": step + 1, "minutes": log.minutes})


def train(options: argparse.Namespace) -> None:
    """Runs or resumes the stage."""
    torch.manual_seed(options.seed)
    device, coder = options.device, Coder.at(options.out / "tokenizer.json")
    eye, text, state = start(options)
    held = [rows_of(900_000_000 + index * 16, 16, coder) for index in range(10)]
    tests = [(rows, look(eye, pictures(rows.scenes), device)) for rows in held]
    scenes = [scene for rows in held for scene in rows.scenes]
    measured = measure(eye.cpu(), torch.from_numpy(labels.basis()), batch(scenes))
    eye.to(device)

    def lessons(step: int) -> tuple[Batch, Tensor]:
        rows = rows_of(options.seed * 1_000_000_000 + step * options.batch, options.batch, coder, loose=0.5)
        return rows, pictures(rows.scenes)

    Stage("joint", eye, text, state, "questions").learn(options, lessons, tests, lambda: {"eye": measured})


def main() -> None:
    """Command line."""
    train(common.options(__doc__, check=100, steps=3000, batch=14, seed=3, muon=4e-3, adam=2e-3))


if __name__ == "__main__":
    main()
