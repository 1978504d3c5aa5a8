"""Gemma 3's tower: rows of a tile do not depend on the tiles beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from mmserve.checkpoint.vision.gemma3 import Gemma3Vision
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.layers.linear import LayerFinisher
from mmserve.model_backend.platforms.device import platform_for
from mmserve.model_backend.vision.gemma3 import Gemma3Tower
from mmserve.model_backend.vision.interface import ViewTensors

SPEC = Gemma3Vision(
    image_size=6 * 14,
    patch_size=14,
    hidden_size=384,
    intermediate_size=64,
    num_layers=1,
    num_heads=6,
    activation="gelu_pytorch_tanh",
    layer_norm_eps=1e-6,
    rows_per_side=3,
)
"""Nine rows a tile: with two threads, torch's product on an AMD EPYC has other bits for 9 rows than for 36."""


@pytest.fixture
def tower() -> Iterator[Gemma3Tower]:
    made = Gemma3Tower(SPEC, 576, context=platform_for("cpu", "float32").layer_context(TpGroup()))
    random, finisher = torch.Generator().manual_seed(0), LayerFinisher(made.modules())
    for name, target in made.targets().items():
        if target is not None:
            with torch.inference_mode():
                target.into.normal_(generator=random)
            finisher.loaded(name)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield made
    torch.set_num_threads(threads)


def test_rows_of_a_tile_have_the_same_bits_beside_others(tower: Gemma3Tower) -> None:
    values = torch.randn(4, 3, SPEC.image_size, SPEC.image_size, generator=torch.Generator().manual_seed(1))
    pictures = [ViewTensors(tile[None], torch.tensor([[1, 1, 1]], dtype=torch.int32)) for tile in values]
    for rows, picture in zip(tower(pictures), pictures, strict=True):
        assert torch.equal(rows, tower([picture])[0])
