"""Stage C, the join: eye and language trained together on real pictures, briefly and at a low, falling rate.

Starts from both stages' checkpoints.  The eye keeps its own loss, so that it goes on speaking the code the text model
was taught, and also gets the answers' gradient.

    python -m training.joint --out runs --steps 900
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

from training import common, labels
from training.eye import Batch as Pictures
from training.eye import Heads, batch, eye_loss, measure
from training.language import answer_loss, exact, logits_of, rows_of
from training.models import Eye, Text
from training.rows import Batch
from training.scenes import make_scene
from training.tokens import Coder


class Seen(nn.Module):
    """Wraps computed picture features and tokens as an eye, so that `eye_loss` does not look twice."""

    def __init__(self, features: Tensor, tokens: Tensor) -> None:
        super().__init__()
        self.pair = features, tokens

    def forward(self, _: Tensor) -> tuple[Tensor, Tensor]:
        """(features, tokens) whatever the patches."""
        return self.pair


def rate(step: int, total: int, warm: int = 40) -> float:
    """A short warm-up, then a straight line to nothing."""
    return min((step + 1) / warm, max(0.0, 1 - step / total))


def draw(rows: Batch, first: int, count: int) -> Pictures:
    """Pictures of the rows' scenes, filled up with further scenes to a fixed number where they are fewer."""
    more = [make_scene(first + index, loose=0.2) for index in range(count - len(rows.scenes))]
    return batch(rows.scenes + more)


@torch.no_grad()
def look(eye: Eye, rows: Batch) -> tuple[Tensor, Pictures]:
    """The eye's tokens for the rows' pictures, and those pictures with labels."""
    data = batch(rows.scenes)
    return torch.cat([eye(part)[1] for part in data[0].split(32)]), data


def evaluate(eye: Eye, text: Text, held: list[Batch], device: str) -> tuple[dict[str, float], dict[str, float]]:
    """Exact match per kind with the real eye, and the eye's own measures."""
    eye.cpu()
    seen = [look(eye, rows) for rows in held]
    merged = tuple(torch.cat(parts) for parts in zip(*(data for _, data in seen), strict=True))
    quality = measure(eye, torch.from_numpy(labels.basis()), merged)  # type: ignore[arg-type]
    eye.to(device)
    return exact(text, [(rows, tokens.to(device)) for rows, (tokens, _) in zip(held, seen, strict=True)]), quality


def start(options: argparse.Namespace) -> tuple[Eye, Heads, Text, common.State | None]:
    """Networks from this stage's checkpoint, or from the two before it."""
    eye, heads, text = Eye(), Heads(), Text()
    path = options.out / "joint.pt"
    own = common.load(path) if path.exists() else None
    seen, told = (own, own) if own else (common.load(options.out / "eye.pt"), common.load(options.out / "language.pt"))
    eye.load_state_dict(seen["eye"])
    heads.load_state_dict(seen["heads"])
    text.load_state_dict(told["text"])
    return eye.to(options.device), heads.to(options.device), text.to(options.device), own


def train(options: argparse.Namespace) -> None:
    """Runs or resumes the stage."""
    torch.manual_seed(options.seed)
    device, coder = options.device, Coder.at(options.out / "tokenizer.json")
    eye, heads, text, state = start(options)
    slow = common.Optimizers((eye, heads), options.muon * options.eye_rate, options.adam * options.eye_rate)
    fast = common.Optimizers((text,), options.muon, options.adam)
    begin, log = 0, common.Log(options.out / "joint.jsonl")
    if state:
        slow.load(state["slow"])
        fast.load(state["fast"])
        begin, log = state["step"], common.Log(options.out / "joint.jsonl", state["minutes"])
    basis = torch.from_numpy(labels.basis()).to(device)
    see, read = (torch.compile(eye), torch.compile(text)) if options.compile else (eye, text)
    frozen = options.eye_rate == 0
    usual = options.batch * 8 // 5 if not frozen else 0  # pictures a step
    held = [rows_of(900_000_000 + index * 16, 16, coder) for index in range(8)]
    if not state:
        log(step=0, held_out=evaluate(eye, text, held, device))
    for step in range(begin, options.steps):
        seed = options.seed * 1_000_000_000 + step * options.batch
        rows = rows_of(seed, options.batch, coder, loose=0.05)
        data = draw(rows, seed * 2 + 500_000_000, usual)
        data = (data[0].to(device), data[1].to(device), data[2].to(device))
        with torch.set_grad_enabled(not frozen):
            features, tokens = (see if len(data[0]) == usual else eye)(data[0])  # one shape is compiled
        logits, target, _ = logits_of(text, read, rows, tokens[: len(rows.scenes)])
        answers = answer_loss(logits, target)
        own_loss = torch.zeros(()) if frozen else eye_loss(Seen(features, tokens), heads, basis, data)
        (answers + options.eye_weight * own_loss).backward()
        scale = rate(step, options.steps)
        fast.step(scale)
        if not frozen:
            slow.step(scale)
        if step % 20 == 0 or step == options.steps - 1:
            log(step=step, loss=float(answers.detach()), eye=float(own_loss.detach()), questions=len(rows.answers))
        if step % options.check == options.check - 1 or step == options.steps - 1:
            log(step=step, held_out=evaluate(eye, text, held, device))
            weights = {"eye": eye.state_dict(), "heads": heads.state_dict(), "text": text.state_dict()}
            progress = {"slow": slow.state(), "fast": fast.state(), "step": step + 1, "minutes": log.minutes}
            common.save(options.out / "joint.pt", weights | progress)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--batch", type=int, default=12, help="rows a step")
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--muon", type=float, default=8e-4)
    parser.add_argument("--adam", type=float, default=4e-4)
    parser.add_argument("--eye-rate", type=float, default=0.5, help="the eye's learning rate, as a share; 0 freezes it")
    parser.add_argument("--eye-weight", type=float, default=0.3, help="weight of the eye's own loss")
    parser.add_argument("--check", type=int, default=100)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
