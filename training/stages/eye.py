"""Stage A, the eye: trains vision tower and projector alone to write the oracle code of every patch, tallies left out.

Input: freshly drawn pictures; target: `training.pictures.labels`.  The loss reads the projected token along the code's
orthonormal directions (a softmax each for class, colour, size and background, squared error for position and for the
whole token) and adds dense class heads on the tower's output, which are thrown away.  No question is seen here.

    python -m training.stages.eye --out runs --steps 5000
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from training.pictures import labels, looks
from training.pictures.scenes import Scene
from training.pictures.world import CLASSES, GRID, SIDE
from training.stages import common
from training.stages.models import SHAPE, Eye

HELD_OUT = 900_000_000  # seeds from here on examine a stage while it runs
LOOSE = 0.3  # of the lessons' texts
SCALE = 10.0  # a perfect one-hot along the code directions is a confident softmax at this scale
Batch = tuple[Tensor, Tensor, Tensor]


def pixels(image: Image.Image) -> np.ndarray:
    """A picture as the processor sees it, squashed to 128 x 128: (P, 768) floats, channel first in a patch."""
    small = np.asarray(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC), np.float32) / 127.5 - 1
    cell = SIDE // GRID
    return small.reshape(GRID, cell, GRID, cell, 3).transpose(0, 2, 4, 1, 3).reshape(GRID * GRID, -1)


def photograph(scene: Scene) -> np.ndarray:
    """Draws a scene, as the processor sees it: (P, 768)."""
    return pixels(looks.photograph(scene))


def batch(scenes: list[Scene]) -> Batch:
    """Patches (n, P, 768), label indices (n, 10, P) and codes (n, P, CODE)."""
    index = np.stack([labels.indices(scene) for scene in scenes])
    place = np.stack([labels.positions(scene) for scene in scenes])
    code = labels.assemble(index, place, np.array([labels.ground(scene) for scene in scenes]))
    picture = np.stack([photograph(scene) for scene in scenes])
    return torch.from_numpy(picture), torch.from_numpy(index), torch.from_numpy(code)


class Heads(nn.Module):
    """Throw-away readers of the vision features: class and colour at the centre and of the cover, side by side."""

    sizes = (len(CLASSES), 9, len(CLASSES), 9)

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(SHAPE.vision_width)
        self.read = nn.Linear(SHAPE.vision_width, sum(self.sizes))

    def forward(self, features: Tensor) -> tuple[Tensor, ...]:
        """(B, P, Dv) -> four logits (B, P, n)."""
        return self.read(self.norm(features)).split(self.sizes, -1)


def sparse_loss(logits: Tensor, target: Tensor, none: float) -> Tensor:
    """Cross entropy over patches (.., n) and (..); class 0 (nothing here) counts `none`."""
    weight = torch.ones(logits.shape[-1], device=logits.device)
    weight[0] = none
    return F.cross_entropy(logits.flatten(0, -2), target.flatten(), weight=weight)


def code_loss(tokens: Tensor, index: Tensor, code: Tensor, basis: Tensor, tallies: float) -> Tensor:
    """How far picture tokens (B, P, D) are from the oracle's, see the module's text; `tallies`: weight of each."""
    if not tallies:
        code = F.pad(code[..., : labels.GROUPS["twins"].start], (0, labels.CODE - labels.GROUPS["twins"].start))
    read = tokens @ basis.T
    total = torch.zeros((), device=tokens.device)
    for channel, name, weight in ((0, "kind", 1.0), (1, "colour", 0.4), (2, "size", 0.4), (5, "order", 0.4)):
        total = total + weight * sparse_loss(SCALE * read[..., labels.GROUPS[name]], index[:, channel], 0.15)
    for name in labels.TALLIES if tallies else ():
        none = F.pad(read[..., labels.GROUPS[name]], (1, 0), value=0.5)  # nothing has no direction of its own
        total = total + tallies * sparse_loss(SCALE * none, index[:, labels.CHANNELS.index(name)], 0.15)
    known, grounds = code[..., labels.GROUPS["ground"]].max(-1)
    unlike = F.cross_entropy(
        SCALE * read[..., labels.GROUPS["ground"]].flatten(0, 1), grounds.flatten(), reduction="none"
    )
    total = total + 0.1 * (unlike * known.flatten()).sum() / known.sum().clamp(min=1)  # not every one has a name
    weight = torch.where(index[:, 0] > 0, 1.0, 0.1)
    axes = slice(labels.GROUPS["x"].start, labels.GROUPS["y"].stop)
    place = (read[..., axes] - code[..., axes]).square().sum(-1)
    whole = (tokens - code @ basis).square().sum(-1)
    return total + ((2.0 * place + 0.3 * whole) * weight).sum() / weight.sum()


def eye_loss(eye: nn.Module, heads: nn.Module, basis: Tensor, data: Batch) -> Tensor:
    """The whole loss of one batch."""
    patches, index, code = data
    features, tokens = eye(patches)
    kind, colour, cover, cover_colour = heads(features)
    dense = sparse_loss(kind, index[:, 0], 0.15) + 0.4 * sparse_loss(colour, index[:, 1], 0.15)
    dense = dense + 0.5 * sparse_loss(cover, index[:, 3], 0.3) + 0.2 * sparse_loss(cover_colour, index[:, 4], 0.3)
    return code_loss(tokens, index, code, basis, tallies=0.0) + 0.5 * dense


@torch.no_grad()
def measure(eye: nn.Module, basis: Tensor, data: Batch) -> dict[str, float]:
    """Shares of right classes (shapes, characters), colours, sizes, faultless pictures; mean position error."""
    patches, index, code = data
    read = torch.cat([eye(part)[1] for part in patches.split(64)]) @ basis.T
    kind = read[..., labels.GROUPS["kind"]].argmax(-1)
    shape, char = (index[:, 0] > 0) & (index[:, 0] < 7), index[:, 0] >= 7
    out = {"shape": (kind == index[:, 0])[shape].float().mean(), "char": (kind == index[:, 0])[char].float().mean()}
    for channel, name in ((1, "colour"), (2, "size"), (5, "order")):
        out[name] = (read[..., labels.GROUPS[name]].argmax(-1) == index[:, channel])[shape | char].float().mean()
    for name in labels.TALLIES:
        found = read[..., labels.GROUPS[name]].argmax(-1) + 1
        out[name] = (found == index[:, labels.CHANNELS.index(name)])[shape].float().mean()
    known, grounds = code[..., labels.GROUPS["ground"]].max(-1)
    out["ground"] = (read[..., labels.GROUPS["ground"]].argmax(-1) == grounds)[known > 0].float().mean()
    out["picture"] = (kind == index[:, 0]).all(1).float().mean()
    middles = torch.arange(GRID).float().add(0.5).div(GRID)
    places = torch.stack(
        [(read[..., labels.GROUPS[a]] @ middles) - (code[..., labels.GROUPS[a]] @ middles) for a in "xy"]
    )
    out["place"] = places.abs()[:, shape | char].mean()
    return {key: float(value) for key, value in out.items()}


def lesson(seed: int) -> Scene:
    """A training scene; of every six, one must have a word and one a number: characters take the longest to learn."""
    if seed % 3:
        return looks.scene(seed, LOOSE)
    return looks.writing(seed, LOOSE, str.isdigit if seed % 2 == 0 else str.isalpha)


def lessons(draw: Callable[[int], Scene], options: argparse.Namespace) -> Callable[[int], Batch]:
    """What a step trains on, by its number: as many scenes as a batch has, each drawn from a seed of its own."""

    def of(step: int) -> Batch:
        first = options.seed * 1_000_000_000 + step * options.batch
        return batch([draw(first + index) for index in range(options.batch)])

    return of


def train(options: argparse.Namespace) -> None:
    """Runs or resumes the stage."""
    torch.manual_seed(options.seed)
    path, device = options.out / "eye.pt", options.device
    eye, heads = Eye(replace(SHAPE, vision_layers=SHAPE.vision_layers - 1)).to(device), Heads().to(device)
    basis = torch.from_numpy(labels.basis()).to(device)
    optimizers = common.Optimizers((eye, heads), options.muon, options.adam)
    start, log = 0, common.Log(options.out / "eye.jsonl")
    if path.exists():
        state = common.load(path)
        eye.load_state_dict(state["eye"]), heads.load_state_dict(state["heads"]), optimizers.load(state["optimizers"])
        start, log = state["step"], common.Log(options.out / "eye.jsonl", state["minutes"])
    run = torch.compile(eye_loss) if options.compile else eye_loss
    held_out = batch([looks.scene(HELD_OUT + index) for index in range(256)])
    for step, data in common.ahead(lessons(lesson, options), start, options):
        loss = run(eye, heads, basis, tuple(part.to(device) for part in data))
        loss.backward()
        norm = optimizers.step(common.curve(step, options.steps, hold=options.hold))
        if step % 20 == 0 or step == options.steps - 1:
            log(step=step, loss=float(loss.detach()), norm=norm)
        if step % options.check == options.check - 1 or step == options.steps - 1:
            log(step=step, held_out=measure(eye.to("cpu"), basis.cpu(), held_out))
            eye.to(device)
            weights = {"eye": eye.state_dict(), "heads": heads.state_dict(), "optimizers": optimizers.state()}
            common.save(path, weights | {"step": step + 1, "minutes": log.minutes})


def main() -> None:
    """Command line."""
    train(common.options(__doc__, check=150, steps=3500, batch=64, seed=1, muon=2e-3, adam=1e-3, hold=0.4))


if __name__ == "__main__":
    main()
