"""The tower's last two layers, set by regression: the first says cleanly what the features say, the second counts.

The features of a patch are those of the packaged tower. Linear probes of them (PROBED) become steps from 0 to 1 in the
first layer's MLP, along directions in which the features hardly vary. In the second layer the centre of a shape attends
to the centres of the same class and colour, the same class, the same colour, and all, and to the picture's first patch,
which is a sink: the centres get n / (n + SINK) of the weight. Steps of that, in its MLP, are the tallies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.qwen3_vl.transplant import slow

PROBED = (("centre", 1), ("kind", 6), ("colour", 8), ("size", 2), ("ground", 4), ("first", 1))
ROWS: dict[str, range] = {}
for _name, _count in PROBED:
    _start = sum(len(rows) for rows in ROWS.values())
    ROWS[_name] = range(_start, _start + _count)
WANTED = ROWS["first"].stop
HEADS = (("centre", "kind", "colour"), ("centre", "kind"), ("centre", "colour"), ("centre",))
"""What is alike: of twins, kin, the same hue, and in all."""
MATCH = (15.0, 12.0, 12.0, 8.0)  # score of centres that are alike
SINK = 3.0
MOST = 7  # shapes of a picture
ROUNDS, DECAY = 60, 1e-6  # of the regression
RISE = 0.2  # from where a step rises to its middle, in logits
LEVELS = torch.ones(WANTED)
LEVELS[[*ROWS["size"], *ROWS["ground"]]] = 0.05
"""Of the steps beside one another. These must not change the length of the features, which the norm divides by."""
ENOUGH = 20  # centres of a tally that show how a head says it
LOUD = 1600.0  # of a step, times the size of a feature along its direction
QUIET = 0.2  # of a head's weight, beside a step
HEARD = (0.8, 1.6)  # of a normed number, at least 2 where something is said
STEEP = 12.0  # units of a step's rise: far more than where the activation bends


@dataclass(frozen=True)
class Probes:
    """(WANTED, width) and (WANTED,), reading normed features; and where the steps rise, (WANTED,) from and to."""

    weight: Tensor
    bias: Tensor
    low: Tensor
    high: Tensor


def normed(x: Tensor) -> Tensor:
    """As the layers' norms do at their start."""
    return F.layer_norm(x, x.shape[-1:], eps=1e-6)


def probes(features: Tensor, wanted: Tensor) -> Probes:
    """Logistic regression of (N, WANTED) zeros and ones on features (N, width). What a centre's class, colour and size
    are is asked of centres, hardly of other patches."""
    x, target = normed(features), wanted.float()
    weight = torch.ones_like(target)
    weight[:, ROWS["kind"].start : ROWS["size"].stop] = torch.where(wanted[:, :1] > 0, 1.0, 0.05)
    linear = nn.Linear(x.shape[1], WANTED)
    nn.init.zeros_(linear.weight), nn.init.constant_(linear.bias, -3.0)
    optimizer = torch.optim.LBFGS(linear.parameters(), max_iter=ROUNDS, history_size=20, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        found = F.binary_cross_entropy_with_logits(linear(x), target, weight, reduction="sum") / len(x)
        found = found + DECAY * linear.weight.square().sum()
        found.backward()
        return found

    optimizer.step(loss)
    half = torch.full((WANTED,), RISE)
    return Probes(linear.weight.detach(), linear.bias.detach(), -half, half)


@torch.no_grad()
def silent(features: Tensor, count: int) -> tuple[Tensor, float]:
    """(count, width) orthonormal directions along which features vary least, all of mean zero over the width, and how
    large features are along them."""
    width = features.shape[1]
    level = torch.eye(width, dtype=torch.double) - 1 / width
    second = level @ (features.double().T @ features.double() / len(features)) @ level
    values, vectors = torch.linalg.eigh(second + 1e9 * torch.ones_like(second) / width)
    return vectors[:, :count].T.float(), float(values[:count].mean().sqrt())


@torch.no_grad()
def step_units(mlp: Any, first: int, read: Tensor, bias: Tensor, low: Tensor, high: Tensor, out: Tensor) -> None:
    """Gives two hidden units each to steps (n) of `read` (n, width) and `bias`, from `low` to `high`; `out` (n, width)
    is added where a step is done."""
    rise = STEEP / (high - low)
    for offset, start, sign in ((0, low, 1), (len(read), high, -1)):
        at = slice(first + offset, first + offset + len(read))
        mlp.linear_fc1.weight[at] = rise[:, None] * read
        mlp.linear_fc1.bias[at] = rise * (bias - start)
        mlp.linear_fc2.weight[:, at] = sign * out.T / STEEP


@torch.no_grad()
def clean(block: Any, found: Probes, directions: Tensor, loud: float) -> None:
    """The first of the two layers. Its attention adds nothing."""
    for part in (block.attn.proj, block.mlp.linear_fc2):
        part.weight.zero_(), part.bias.zero_()
    step_units(
        block.mlp, 0, found.weight, found.bias, found.low, found.high, loud * LEVELS[:, None] * directions[:WANTED]
    )


@torch.no_grad()
def count(block: Any, size: Tensor, directions: Tensor, loud: float) -> None:
    """The second layer's attention. `size` (WANTED,): of each step, after the layer's norm; `directions`: of the steps,
    then of the heads' weights, which are `QUIET * loud` long."""
    attention, width = block.attn, directions.shape[1]
    head_size = width // len(HEADS)
    qkv = attention.qkv
    for part in (qkv, attention.proj, block.mlp.linear_fc2):
        part.weight.zero_(), part.bias.zero_()
    for head, (names, match) in enumerate(zip(HEADS, MATCH, strict=True)):
        rows = [row for name in names for row in ROWS[name]]
        *places, sink = (head * head_size + place for place in slow(head_size)[: len(rows) + 1])
        scale = math.sqrt(match / len(names) * math.sqrt(head_size))
        read = directions[: len(size)] / size[:, None]
        for part in (0, width):
            qkv.weight[[part + place for place in places]] = scale * read[rows]
        qkv.bias[sink] = 1.0
        qkv.weight[width + sink] = (match + math.log(SINK)) * math.sqrt(head_size) * read[ROWS["first"][0]]
        value = head * head_size
        qkv.weight[2 * width + value] = read[ROWS["centre"][0]]
        attention.proj.weight[:, value] = QUIET * loud * directions[WANTED + head]


@torch.no_grad()
def tell(block: Any, features: Tensor, tallies: Tensor, directions: Tensor, loud: float) -> None:
    """The second layer's steps: one for every number that a head can tell from the next. `features` (n, width): of
    centres, after the layer's attention; `tallies`: (n, heads)."""
    numbers = torch.arange(1, MOST + 1)
    share = numbers / (numbers + SINK)
    read, low, high = [], [], []
    for head, direction in enumerate(directions[WANTED : WANTED + len(HEADS)]):
        said = normed(features) @ direction
        enough = min(ENOUGH, int(tallies[:, head].bincount().max()))
        seen = torch.tensor([number for number in numbers if (tallies[:, head] == number).sum() >= enough])
        medians = torch.stack([said[tallies[:, head] == number].median() for number in seen])
        line = torch.linalg.lstsq(torch.stack([share[seen - 1], torch.ones(len(seen))], 1), medians[:, None]).solution
        level = share * line[0] + line[1]
        level[seen - 1] = medians
        level = torch.cat([level[:1] - level.diff()[:1], level])
        between, gap = (level[1:] + level[:-1]) / 2, level.diff()
        read.append(direction.expand(MOST, -1)), low.append(between - gap / 4), high.append(between + gap / 4)
    said, centre = normed(features) @ directions[:WANTED].T, ROWS["centre"][0]
    for row in SURE:
        sizes = said[:, row].quantile(0.99), said[:, centre].median()
        read.append((directions[row] / sizes[0] + directions[centre] / sizes[1])[None])
        low.append(torch.tensor([1.4])), high.append(torch.tensor([1.6]))
    steps = directions[WANTED + len(HEADS) :]
    arguments = [torch.cat(part) for part in (read, low, high)]
    step_units(block.mlp, 0, arguments[0], torch.zeros(len(steps)), arguments[1], arguments[2], loud * steps)


SURE = range(ROWS["kind"].start, ROWS["size"].stop)
"""Probes that are said once more, only of centres."""
DIRECTIONS = WANTED + len(HEADS) + len(HEADS) * MOST + len(SURE)


@torch.no_grad()
def gather(merger: Any, directions: Tensor) -> None:
    """A merger's first weights: for all that the last layer says, a step of whether any patch of the cell says it."""
    said = torch.cat([directions[list(ROWS["ground"])], directions[WANTED + len(HEADS) :]])
    merger.linear_fc1.weight.zero_(), merger.linear_fc1.bias.zero_()
    rise = STEEP / (HEARD[1] - HEARD[0])
    for offset, start in ((0, HEARD[0]), (len(said), HEARD[1])):
        at = slice(offset, offset + len(said))
        merger.linear_fc1.weight[at] = rise * said.repeat(1, merger.linear_fc1.in_features // said.shape[1])
        merger.linear_fc1.bias[at] = -rise * start
