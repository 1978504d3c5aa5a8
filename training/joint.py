"""Stage C, the join: the text model goes on learning on what the finished eye says of real pictures.

The eye stays as it is.  The rate falls in a straight line to nothing, so the last steps matter most.

    python -m training.joint --out runs --steps 3000
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from training import common, labels
from training.eye import Batch as Pictures
from training.eye import batch, measure
from training.language import answer_loss, exact, logits_of, rows_of
from training.models import Eye, Text
from training.rows import Batch
from training.tokens import Coder


def rate(step: int, total: int, warm: int = 40) -> float:
    """A short warm-up, then a straight line to nothing."""
    return min((step + 1) / warm, max(0.0, 1 - step / total))


@torch.no_grad()
def look(eye: Eye, rows: Batch, device: str) -> tuple[Tensor, Pictures]:
    """The eye's tokens for the rows' pictures, and those pictures with labels."""
    if not rows.scenes:
        return torch.zeros(0, 64, labels.WIDTH, device=device), batch([])
    data = batch(rows.scenes)
    return torch.cat([eye(part.to(device))[1] for part in data[0].split(32)]), data


def start(options: argparse.Namespace) -> tuple[Eye, Text, common.State | None]:
    """Networks from this stage's checkpoint, or from the ones before it."""
    eye, text = Eye(), Text()
    path = options.out / "joint.pt"
    own = common.load(path) if path.exists() else None
    eye.load_state_dict((own or common.load(options.out / "tally.pt"))["eye"])
    text.load_state_dict((own or common.load(options.out / "language.pt"))["text"])
    return eye.to(options.device).requires_grad_(False), text.to(options.device), own


def train(options: argparse.Namespace) -> None:
    """Runs or resumes the stage."""
    torch.manual_seed(options.seed)
    device, coder = options.device, Coder.at(options.out / "tokenizer.json")
    eye, text, state = start(options)
    optimizers = common.Optimizers((text,), options.muon, options.adam)
    begin, log = 0, common.Log(options.out / "joint.jsonl", state["minutes"] if state else 0.0)
    if state:
        optimizers.load(state["optimizers"])
        begin = state["step"]
    read = torch.compile(text) if options.compile else text
    held = [rows_of(900_000_000 + index * 16, 16, coder) for index in range(10)]
    seen = [look(eye, rows, device) for rows in held]
    merged = tuple(torch.cat(parts) for parts in zip(*(data for _, data in seen), strict=True))
    log(step=begin, eye=measure(eye.cpu(), torch.from_numpy(labels.basis()), merged))  # type: ignore[arg-type]
    eye.to(device)
    tests = [(rows, tokens) for rows, (tokens, _) in zip(held, seen, strict=True)]
    for step in range(begin, options.steps):
        rows = rows_of(options.seed * 1_000_000_000 + step * options.batch, options.batch, coder, loose=0.05)
        logits, target, _ = logits_of(text, read, rows, look(eye, rows, device)[0])
        loss = answer_loss(logits, target)
        loss.backward()
        optimizers.step(rate(step, options.steps))
        if step % 20 == 0 or step == options.steps - 1:
            log(step=step, loss=float(loss.detach()), questions=len(rows.answers))
        if step % options.check == options.check - 1 or step == options.steps - 1:
            log(step=step, held_out=exact(text, tests))
            weights = {"eye": eye.state_dict(), "text": text.state_dict(), "optimizers": optimizers.state()}
            common.save(options.out / "joint.pt", weights | {"step": step + 1, "minutes": log.minutes})


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=14, help="rows a step")
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--muon", type=float, default=4e-3)
    parser.add_argument("--adam", type=float, default=2e-3)
    parser.add_argument("--check", type=int, default=100)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
