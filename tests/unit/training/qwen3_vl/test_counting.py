"""The tower's last two layers, set from features that hold a class and a colour: steps, and how many are alike."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from training.qwen3_vl import counting, shape
from training.qwen3_vl.counting import ROWS, WANTED

WIDTH = 192
PICTURES, PATCHES, SHAPES = 400, 40, 6


def test_a_step_is_nothing_below_its_rise_and_whole_above() -> None:
    mlp = SimpleNamespace(linear_fc1=nn.Linear(4, 6), linear_fc2=nn.Linear(6, 4))
    for part in (mlp.linear_fc1, mlp.linear_fc2):
        nn.init.zeros_(part.weight), nn.init.zeros_(part.bias)
    out = torch.tensor([[0.0, 5, 0, 0], [0, 0, 7, 0]])
    low, high = torch.tensor([-0.5, 1.0]), torch.tensor([0.5, 2.0])
    counting.step_units(mlp, 1, torch.eye(4)[:2], torch.zeros(2), low, high, out)
    given = torch.tensor([[-1.0, 0.5, 0, 0], [1.0, 0.5, 0, 0], [1.0, 2.5, 0, 0], [0.0, 1.5, 0, 0]])
    inside = mlp.linear_fc1(given)
    found = mlp.linear_fc2(inside * torch.sigmoid(1.702 * inside))
    expected = torch.tensor([[0.0, 0, 0, 0], [0, 5, 0, 0], [0, 5, 7, 0], [0, 2.5, 3.5, 0]])
    torch.testing.assert_close(found, expected, atol=0.05, rtol=0)


def test_silent_directions_are_orthonormal_and_features_hardly_vary_along_them() -> None:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(500, 10, generator=generator) @ torch.randn(10, 48, generator=generator)
    features += 1e-3 * torch.randn(500, 48, generator=generator)
    directions, size = counting.silent(features, 20)
    torch.testing.assert_close(directions @ directions.T, torch.eye(20), atol=1e-4, rtol=0)
    torch.testing.assert_close(directions.sum(1), torch.zeros(20), atol=1e-4, rtol=0)
    assert float((features @ directions.T).abs().max()) < 0.01
    assert size < 0.01


def features_of(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(patches, WIDTH) of PICTURES pictures; (patches, WANTED) what they hold; (patches, heads) how many are alike."""
    wanted = torch.zeros(PICTURES, PATCHES, WANTED)
    tallies = torch.zeros(PICTURES, PATCHES, len(counting.HEADS), dtype=torch.long)
    wanted[:, 0, ROWS["first"][0]] = 1
    for picture in range(PICTURES):
        wanted[picture, :, ROWS["ground"][picture % 4]] = 1
        count = int(torch.randint(1, SHAPES + 1, (1,), generator=generator))
        at = 1 + torch.randperm(PATCHES - 1, generator=generator)[:count]
        kind, colour = (torch.randint(2, (count,), generator=generator) for _ in range(2))
        wanted[picture, at, ROWS["centre"][0]] = 1
        wanted[picture, at, ROWS["kind"][0] + kind] = 1
        wanted[picture, at, ROWS["colour"][0] + colour] = 1
        wanted[picture, at, ROWS["size"][0]] = 1
        same = [first[:, None] == first for first in (kind, colour)]
        alike = (same[0] & same[1], same[0], same[1], torch.ones_like(same[0]))
        tallies[picture, at] = torch.stack([part.sum(1) for part in alike], 1)
    noise = 0.02 * torch.randn(PICTURES, PATCHES, 30, generator=generator)
    held = torch.cat([wanted, noise], -1)
    features = held @ torch.randn(held.shape[-1], WIDTH, generator=generator)
    features += 1e-2 * torch.randn(features.shape, generator=generator)
    features = counting.normed(features)  # all patches of one length, as those of a picture nearly are
    return features.flatten(0, 1), wanted.flatten(0, 1), tallies.flatten(0, 1)


@torch.no_grad()
def test_centres_say_how_many_are_like_them() -> None:
    features, wanted, tallies = features_of(torch.Generator().manual_seed(2))
    cleaner, counter = shape.network().model.visual.blocks[-2:]
    directions, size = counting.silent(features, counting.DIRECTIONS)
    loud = counting.LOUD * size
    with torch.enable_grad():
        probes = counting.probes(features, wanted)
    counting.clean(cleaner, probes, directions, loud)
    marks = {
        "cu_seqlens": torch.arange(PICTURES + 1) * PATCHES,
        "position_embeddings": (torch.ones(len(features), 48), torch.zeros(len(features), 48)),
    }
    cleaned = cleaner(features, **marks)
    said = counting.normed(cleaned) @ directions[:WANTED].T
    seen = wanted.sum(0)
    counting.count(counter, torch.where(seen > 0, (said * wanted).sum(0) / seen, 1.0), directions, loud)
    centres = wanted[:, ROWS["centre"][0]] > 0
    attended = cleaned + counter.attn(counter.norm1(cleaned), **marks)
    counting.tell(counter, attended[centres], tallies[centres], directions, loud)
    steps = directions[WANTED + len(counting.HEADS) :][: len(counting.HEADS) * counting.MOST]
    found = (counter(cleaned, **marks)[centres] @ steps.T).unflatten(-1, (len(counting.HEADS), -1))
    numbers = (found > loud / 2).sum(-1)
    expected = tallies[centres]
    few = expected <= 3
    assert (numbers == expected)[few].float().mean() > 0.9
    assert ((numbers - expected).abs() <= 1).float().mean() > 0.97
    assert few.sum() > 100
    assert (~few).sum() > 100
