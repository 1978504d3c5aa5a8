"""SigLIP's features equal those of transformers, in float32 and bfloat16, alone and in a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from mmserve.checkpoint.config.json_config import convert
from mmserve.checkpoint.vision.siglip import SiglipJson, SiglipSpec
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.layers.linear import LayerFinisher
from mmserve.model_backend.loader import weights
from mmserve.model_backend.platforms.device import platform_for
from mmserve.model_backend.vision.parts.siglip import SiglipEncoder
from mmserve.runtime.errors import StartupError

SIZES = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 56,
    "patch_size": 14,
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of a random encoder whose norms and biases are random too."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("siglip")
    model = transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**SIZES, vision_use_head=False))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(path)
    return path


def encoder(directory: Path, dtype: str) -> SiglipEncoder:
    context = platform_for("cpu", dtype).layer_context(TpGroup())  # type: ignore[arg-type]
    made = SiglipEncoder(SiglipSpec(**convert(SIZES, SiglipJson).fields()), context=context.below("vision."))
    finisher = LayerFinisher(made.modules())
    names = ("vision_model.", "vision.")
    weights.load(
        directory,
        ("vision.",),
        lambda stored: names[1] + stored.removeprefix(names[0]),
        dict(made.targets()),
        lambda done, total, unit: None,
        finisher.loaded,
    )
    return made


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 5e-2)])
def test_features_equal_those_of_transformers(directory: Path, dtype: str, tolerance: float) -> None:
    tiles = torch.randn(3, 3, 56, 56, generator=torch.manual_seed(1))
    model = transformers.SiglipVisionModel.from_pretrained(directory, dtype=torch.float32)
    with torch.inference_mode():
        expected = model(tiles).last_hidden_state
        found = encoder(directory, dtype)(tiles)
    torch.testing.assert_close(found.float(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_tile_has_the_same_features_to_the_bit_in_any_batch(directory: Path, dtype: str) -> None:
    tiles, made = torch.randn(3, 3, 56, 56, generator=torch.manual_seed(2)), encoder(directory, dtype)
    with torch.inference_mode():
        assert torch.equal(made(tiles), torch.cat([made(tile[None]) for tile in tiles]))


@pytest.mark.parametrize("change", [{"hidden_act": "mish"}, {"num_channels": 1}, {"num_attention_heads": 5}])
def test_what_is_not_supported_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(StartupError):
        convert(SIZES | change, SiglipJson).fields()
