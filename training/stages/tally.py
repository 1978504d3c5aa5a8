"""Stage A2, counting: a seventh layer on the finished eye says how many shapes are alike.

The six layers under it stay as they are, so nothing that the eye can see is lost; the new layer and the projector are
trained.  The layer's four heads begin with what counting needs, by linear probes of the features under it: the centre
of a shape attends to centres of the same class, the same colour, both, and all, beside a sink, so that the weight they
get tells how many they are.

    python -m training.stages.tally --out runs --steps 2400
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from training.pictures import labels, looks
from training.pictures.world import SHAPES
from training.stages import common
from training.stages.eye import HELD_OUT, Batch, batch, code_loss, lessons, measure
from training.stages.models import SHAPE, Eye, VisionLayer

T = TypeVar("T")
UNDER = SHAPE.vision_layers - 1
AGAIN = (32, 8)  # steps after which pictures are learned from once more
SHARP = 3.8  # two equal one-hots scaled by this score 2 after attention's own scaling


@torch.no_grad()
def under(eye: Eye, patches: Tensor) -> Tensor:
    """(B, P, 768) -> (B, 1 + P, Dv): what the last layer reads."""
    vision = eye.vision_tower["vision_model"]
    x = vision.pre_layrnorm(vision.embeddings(patches))
    for layer in vision.encoder["layers"][:UNDER]:
        x = layer(x)
    return x


def above(eye: Eye, x: Tensor) -> Tensor:
    """(B, 1 + P, Dv) -> picture tokens (B, P, D)."""
    return eye.multi_modal_projector(eye.vision_tower["vision_model"].encoder["layers"][UNDER](x)[:, 1:])


@torch.no_grad()
def probes(eye: Eye, count: int = 384) -> tuple[Tensor, Tensor]:
    """Ridge regression from normed features to (1 + 6 + 8 + 1): a shape's centre, its class, its colour; the class
    token.  Returns weights (16, Dv) and biases (16,)."""
    patches, index, _ = batch([looks.scene(700_000_000 + number) for number in range(count)])
    x = torch.cat([under(eye, part) for part in patches.split(64)])
    x = F.layer_norm(x, x.shape[-1:]).flatten(0, 1).double()
    kind, colour = index[:, 0], index[:, 1]
    centre = (kind > 0) & (kind <= len(SHAPES))
    target = torch.zeros(count, 1 + kind.shape[1], 16, dtype=torch.double)
    target[:, 1:, 0] = centre.double()
    target[:, 1:, 1:7] = F.one_hot(kind.clamp(max=6), 7)[..., 1:].double() * centre[..., None]
    target[:, 1:, 7:15] = F.one_hot(colour, 9)[..., 1:].double() * centre[..., None]
    target[:, 0, 15] = 1
    ones = torch.cat([x, torch.ones(len(x), 1, dtype=torch.double)], 1)
    solved = torch.linalg.solve(ones.T @ ones + torch.eye(ones.shape[1]) * 3.0, ones.T @ target.flatten(0, 1))
    return solved[:-1].T.float(), solved[-1].float()


@torch.no_grad()
def plant(layer: VisionLayer, weight: Tensor, bias: Tensor) -> None:
    """Gives the layer's heads their start; what it adds to the residual is small."""
    attn, size = layer.self_attn, SHAPE.vision_width // SHAPE.vision_heads
    for part in (attn.q_proj, attn.k_proj):
        part.weight.mul_(0.1), part.bias.zero_()
    attn.v_proj.weight.mul_(0.3), attn.v_proj.bias.zero_()
    attn.out_proj.bias.zero_()
    layer.mlp["fc2"].weight.mul_(0.2), layer.mlp["fc2"].bias.zero_()
    asked = {0: list(range(1, 15)), 1: list(range(1, 7)), 2: list(range(7, 15)), 3: [0]}
    for head, rows in asked.items():
        at = slice(head * size, head * size + len(rows))
        scale = SHARP * (1.4 if head == 0 else 1.0)
        for part in (attn.q_proj, attn.k_proj):
            part.weight[at] = scale * weight[rows]
            part.bias[at] = scale * bias[rows]
        sink = head * size + len(rows)  # a centre's query meets the class token's key
        attn.q_proj.weight[sink], attn.q_proj.bias[sink] = scale * weight[0], scale * bias[0]
        attn.k_proj.weight[sink], attn.k_proj.bias[sink] = scale * 1.5 * weight[15], scale * 1.5 * bias[15]
        attn.v_proj.weight[head * size] = weight[0]
        attn.v_proj.bias[head * size] = bias[0]


def looked_at(eye: Eye, drawn: Iterable[tuple[int, Batch]], device: str) -> Iterator[tuple[int, Batch]]:
    """Each step's batch with what the last layer reads in place of the patches."""
    for step, (patches, index, code) in drawn:
        yield step, (under(eye, patches.to(device)), index.to(device), code.to(device))


def repeated(made: Iterable[tuple[int, T]]) -> Iterator[tuple[int, list[T]]]:
    """Each step with its own features and those of `AGAIN` steps before: drawing pictures and looking at them with the
    six layers costs three times what learning from them does.  After a resume there are none from before it."""
    kept: deque[T] = deque(maxlen=max(AGAIN) + 1)
    for step, features in made:
        kept.append(features)
        yield step, [kept[-1 - ago] for ago in (*AGAIN, 0) if ago < len(kept)]


def begin(options: argparse.Namespace) -> Eye:
    """The finished eye with a planted layer on top."""
    state = common.load(options.out / "eye.pt")["eye"]
    eye = Eye()
    eye.load_state_dict(state, strict=False)  # the new layer is not in it
    plant(eye.vision_tower["vision_model"].encoder["layers"][UNDER], *probes(eye))
    return eye


def train(options: argparse.Namespace) -> None:
    """Runs or resumes the stage; writes the whole eye."""
    torch.manual_seed(options.seed)
    path, device = options.out / "tally.pt", options.device
    saved = common.load(path) if path.exists() else None
    eye = Eye() if saved else begin(options)
    if saved:
        eye.load_state_dict(saved["eye"])
    eye.to(device)
    layers = eye.vision_tower["vision_model"].encoder["layers"]
    optimizers = common.Optimizers((torch.nn.ModuleDict({"layers": layers[UNDER:]}), eye.multi_modal_projector),
                                   options.muon, options.adam)  # fmt: skip
    start, log = 0, common.Log(options.out / "tally.jsonl", saved["minutes"] if saved else 0.0)
    if saved:
        optimizers.load(saved["optimizers"])
        start = saved["step"]
    basis = torch.from_numpy(labels.basis()).to(device)
    read = torch.compile(above) if options.compile else above
    held_out: Batch = batch([looks.scene(HELD_OUT + index) for index in range(256)])
    drawn = common.ahead(lessons(lambda seed: looks.scene(seed, loose=0.2), options), start, options)
    for step, batches in repeated(looked_at(eye, drawn, device)):
        for features, index, code in batches:
            loss = code_loss(read(eye, features), index, code, basis, options.tallies)
            loss.backward()
            optimizers.step(common.curve(step, options.steps, warm=20, hold=options.hold))
        if step % 20 == 0 or step == options.steps - 1:
            log(step=step, loss=float(loss.detach()))
        if step % options.check == options.check - 1 or step == options.steps - 1:
            log(step=step, held_out=measure(eye.to("cpu"), basis.cpu(), held_out))
            eye.to(device)
            progress = {"optimizers": optimizers.state(), "step": step + 1, "minutes": log.minutes}
            common.save(path, {"eye": eye.state_dict()} | progress)


def main() -> None:
    """Command line."""
    train(common.options(__doc__, check=50, steps=2400, batch=64, seed=6, muon=2e-3, adam=1e-3, hold=0.4, tallies=1.0))


if __name__ == "__main__":
    main()
