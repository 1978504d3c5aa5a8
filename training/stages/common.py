"""What the training runs share: optimisers, the learning-rate curve, checkpoints and a log of one JSON line each.

A run is a function of its seed, its step number and its total: stopping and resuming gives the same pictures.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from training.stages.muon import Muon

State = dict[str, Any]
T = TypeVar("T")


def options(
    doc: str, more: Mapping[str, tuple[type, str]] = MappingProxyType({}), *, check: int, **defaults: int | float
) -> argparse.Namespace:
    """A stage's command line, parsed; `defaults`: its numbers, such as steps, batch (scenes or rows a step), seed, and
    the learning rates muon and adam; `more`: types and descriptions of options that may be left out."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs"))
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    for name, (kind, about) in more.items():
        parser.add_argument(f"--{name}", type=kind, help=about)
    parser.add_argument("--check", type=int, default=check, help="steps between examinations and checkpoints")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1, help="processes that draw ahead; more for a GPU (0: none)")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args()


class Optimizers:
    """Muon for the matrices of the layers, AdamW for everything else, driven by one learning-rate curve."""

    def __init__(self, modules: Iterable[nn.Module], muon: float, adam: float, decay: float = 0.02) -> None:
        matrices: list[nn.Parameter] = []
        rest: list[nn.Parameter] = []
        for module in modules:
            for name, parameter in module.named_parameters():
                hidden = parameter.ndim == 2 and any(part in f".{name}" for part in (".layers.", ".blocks."))
                (matrices if hidden else rest).append(parameter)
        self.rates = (muon, adam)
        self.all = [*matrices, *rest]
        self.muon = Muon(matrices, lr=muon, decay=decay)
        self.adam = torch.optim.AdamW(rest, lr=adam, betas=(0.9, 0.98), weight_decay=0.0)

    def step(self, scale: float, clip: float = 1.0) -> float:
        """Clips, steps both with their rates times `scale`, clears gradients; returns the gradient norm."""
        norm = float(nn.utils.clip_grad_norm_(self.all, clip))
        for optimizer, rate in zip((self.muon, self.adam), self.rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * scale
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return norm

    def state(self) -> State:
        """For the checkpoint."""
        return {"muon": self.muon.state_dict(), "adam": self.adam.state_dict()}

    def load(self, state: State) -> None:
        """From the checkpoint."""
        self.muon.load_state_dict(state["muon"])
        self.adam.load_state_dict(state["adam"])


def curve(step: int, total: int, warm: int = 100, hold: float = 0.4, floor: float = 0.02) -> float:
    """Warm-up, a plateau up to `hold` of the total, then linear decay to `floor`."""
    if step < warm:
        return (step + 1) / warm
    left = (total - step) / max(1.0, total * (1 - hold))
    return max(floor, min(1.0, left))


class Steps(Dataset[T]):
    """What each step trains on, by the step's number."""

    def __init__(self, make: Callable[[int], T]) -> None:
        self.make = make

    def __getitem__(self, step: int) -> T:
        return self.make(step)


def ahead(make: Callable[[int], T], start: int, options: argparse.Namespace) -> Iterator[tuple[int, T]]:
    """The steps from `start` on, each with what `make` gives for it, made in other processes while a step computes."""
    steps = range(start, options.steps)
    made = DataLoader(Steps(make), batch_size=None, sampler=steps, num_workers=options.workers)
    return zip(steps, made, strict=True)


def save(path: Path, state: State) -> None:
    """Writes a checkpoint so that a reader never sees half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)


def load(path: Path) -> State:
    """Reads a checkpoint onto the CPU."""
    return torch.load(path, map_location="cpu", weights_only=True)


class Log:
    """Prints measurements and appends them to a file, with the minutes since the start (resumes included)."""

    def __init__(self, path: Path, minutes: float = 0.0) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.start = path, time.monotonic() - minutes * 60

    @property
    def minutes(self) -> float:
        """Training time so far."""
        return (time.monotonic() - self.start) / 60

    def __call__(self, **values: Any) -> None:
        row = {"minutes": round(self.minutes, 2)}
        row |= {key: round(value, 4) if isinstance(value, float) else value for key, value in values.items()}
        line = json.dumps(row)
        print(line, flush=True)
        with self.path.open("a") as file:
            file.write(line + "\n")
