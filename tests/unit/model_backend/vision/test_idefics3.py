"""Idefics3 and SmolVLM: rows equal the image features of transformers, alone and beside pictures of other sizes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers

from mmserve.checkpoint.load import load
from mmserve.model_backend.loader.load import load_tower
from mmserve.model_backend.platforms.device import platform_for
from mmserve.model_backend.platforms.reference import TorchPlatform
from mmserve.model_backend.vision import idefics3
from mmserve.processors.registry import processor_for
from mmserve.runtime.errors import StartupError
from tests.fakes.models.idefics3 import make_idefics3
from tests.fakes.pictures.media import png
from tests.fakes.pictures.tower_inputs import read_by_tower


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_idefics3(tmp_path_factory.mktemp("idefics3"))


@pytest.mark.parametrize("name", ["Idefics3", "SmolVLM"])
def test_rows_equal_the_image_features_of_transformers(directory: Path, name: str) -> None:
    """Of both classes, with the same weights."""
    model = load(directory)
    tower = load_tower(model, platform_for("cpu", "float32"), lambda done, total, unit: None)
    processor = processor_for(model)
    assert processor is not None
    reference = getattr(transformers, f"{name}ForConditionalGeneration").from_pretrained(
        directory, config=getattr(transformers, f"{name}Config").from_pretrained(directory), dtype=torch.float32
    )
    sizes = ((100, 37), (56, 56), (64, 80))
    pictures = read_by_tower(processor, [processor.views(png(seed, *size)) for seed, size in enumerate(sizes)])
    rows = tower(pictures)
    for size, picture, ours in zip(sizes, pictures, rows, strict=True):
        with torch.inference_mode():
            theirs = reference.get_image_features(picture.values[None]).pooler_output
        torch.testing.assert_close(ours, torch.cat(list(theirs)), rtol=1e-5, atol=1e-5)
        assert torch.equal(ours, tower([picture])[0])
        assert len(ours) == processor.expand(*size).num_rows
    alone = load_tower(model, TorchPlatform(torch.device("cpu"), torch.float32), lambda *_: None)
    short = load_tower(model, platform_for("cpu", "bfloat16"), lambda *_: None)
    for ours, of_torch, rounded in zip(rows, alone(pictures), short(pictures), strict=True):
        torch.testing.assert_close(of_torch, ours, rtol=1e-5, atol=1e-5)
        assert (rounded - ours).norm() < 0.03 * ours.norm()


@pytest.mark.parametrize("side", [26, 27, 31, 32])
def test_positions_are_those_of_transformers(side: int) -> None:
    config = transformers.Idefics3VisionConfig(hidden_size=2, image_size=side, patch_size=1)
    embeddings = transformers.models.idefics3.modeling_idefics3.Idefics3VisionEmbeddings(config)
    with torch.no_grad():
        embeddings.patch_embedding.weight.zero_()
        embeddings.patch_embedding.bias.zero_()
        embeddings.position_embedding.weight.copy_(torch.arange(side * side)[:, None].expand(-1, 2))
        found = embeddings(torch.zeros(1, 3, side, side), torch.ones(1, side, side, dtype=torch.bool))
    assert found[0, :, 0].long().tolist() == idefics3.position_order(side).tolist()


def test_a_smolvlm_is_read_alike(directory: Path, tmp_path: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    config |= {"architectures": ["SmolVLMForConditionalGeneration"], "model_type": "smolvlm"}
    config["vision_config"] |= {"model_type": "smolvlm_vision", "max_image_size": {"longest_edge": 512}}
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).symlink_to(directory / name)
    (tmp_path / "config.json").write_text(json.dumps(config))
    theirs, ours = load(directory), load(tmp_path)
    assert (ours.text, ours.vision, ours.image_token_id) == (theirs.text, theirs.vision, theirs.image_token_id)
    config["scale_factor"] = 3
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(StartupError, match="scale_factor 3"):
        load(tmp_path)
