"""LLaVA's projector beside the language model's file, and what is refused by name of any projector."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from mmserve.checkpoint.gguf.directory import directory_of
from mmserve.checkpoint.load import load
from mmserve.checkpoint.vision.clip import ClipVision
from mmserve.model_backend.loader.load import load_tower
from mmserve.model_backend.platforms.device import platform_for
from mmserve.processors.registry import processor_for
from mmserve.runtime.errors import StartupError
from tests.fakes.formats.gguf_files import gguf_of
from tests.fakes.formats.gguf_projectors import projector_of
from tests.fakes.models.checkpoints import make_llava
from tests.fakes.pictures.embeddings import tiles


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its numbers fit into F16."""
    return make_llava(tmp_path_factory.mktemp("llava"), dtype=torch.float16)


def made(llava: Path, directory: Path, **more: Any) -> Path:
    """A directory made from two files."""
    file = gguf_of(llava, directory / "tiny.gguf", lambda name: "F16")
    projector_of(llava, directory / "mmproj-tiny-f16.gguf", **more)
    return directory_of(file, directory)


def rows_of(directory: Path) -> list[torch.Tensor]:
    pixels = torch.randn(3, 3, 28, 28, generator=torch.manual_seed(1))
    return load_tower(load(directory), platform_for("cpu", "float32"), lambda *_: None)(tiles(pixels))


@pytest.mark.parametrize("exchanged", [False, True])
def test_rows_of_pictures_are_those_of_the_checkpoint(llava: Path, tmp_path: Path, exchanged: bool) -> None:
    """Converters leave out the layers behind the feature layer, and older ones exchange the MLP's names."""
    directory = made(llava, tmp_path, layers=2, exchanged=exchanged)
    assert all(map(torch.equal, rows_of(directory), rows_of(llava)))


def test_a_feature_layer_that_the_file_names_is_used(llava: Path, tmp_path: Path) -> None:
    directory = made(llava, tmp_path, layers=3, clip__vision__feature_layer=[2])
    assert all(map(torch.equal, rows_of(directory), rows_of(llava)))


def test_the_model_is_that_of_the_checkpoint(llava: Path, tmp_path: Path) -> None:
    found, expected = load(made(llava, tmp_path, layers=2)), load(llava)
    assert isinstance(found.vision, ClipVision)
    assert isinstance(expected.vision, ClipVision)
    eps = round(found.vision.layer_norm_eps, 9)
    assert replace(found.vision, layer_norm_eps=eps) == replace(expected.vision, num_layers=2, feature_layer=-1)
    assert (found.family, found.image_token_id, found.image_token) == ("llava", expected.image_token_id, "<image>")
    assert (found.eos_token_ids, found.bos_token_id) == (expected.eos_token_ids, expected.bos_token_id)
    assert found.text.num_layers == expected.text.num_layers


def test_pictures_are_padded_to_squares_unless_a_file_beside_says_otherwise(llava: Path, tmp_path: Path) -> None:
    settings = json.loads((made(llava, tmp_path) / "preprocessor_config.json").read_text())
    assert (settings["do_pad"], settings["size"]) == (True, {"height": 28, "width": 28})
    processor = processor_for(load(made(llava, tmp_path)))
    assert processor is not None
    assert processor.max_rows == 16
    beside = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(beside))
    assert json.loads((made(llava, tmp_path) / "preprocessor_config.json").read_text()) == beside


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"clip__projector_type": "resampler"}, r"clip\.projector_type 'resampler' is not supported; .*: mlp, gemma3"),
        ({"clip__projector_type": ["mlp"]}, r"clip\.projector_type \['mlp'\] is not supported"),
        ({"clip__projector_type": "gemma3"}, "a projector gemma3 does not belong to llama, but to gemma3"),
        ({"clip__projector_type": "qwen3vl_merger"}, "does not belong to llama, but to qwen3vl"),
        ({"clip__has_audio_encoder": True}, "a projector for audio is not supported"),
        ({"general__architecture": "llama"}, "'llama' is not that of a projector"),
        ({"clip__vision__feature_layer": [1, 2]}, r"feature_layer \[1, 2\] is not supported"),
        ({"clip__vision__image_size": 0.5}, r"clip\.vision\.image_size 0\.5 is no int"),
        ({"clip__vision__image_mean": [0.5]}, r"clip\.vision\.image_mean \[0\.5\] is not three numbers"),
        ({"clip__vision__image_std": ["a", "b", "c"]}, r"clip\.vision\.image_std .* is not three numbers"),
    ],
)
def test_other_projectors_are_refused_by_name(llava: Path, tmp_path: Path, more: dict[str, Any], reason: str) -> None:
    with pytest.raises(StartupError, match=rf"tiny\.gguf and .*mmproj-tiny-f16\.gguf: .*{reason}"):
        made(llava, tmp_path, **more)


def test_a_projector_of_another_width_is_refused(llava: Path, tmp_path: Path) -> None:
    file = gguf_of(
        make_llava(tmp_path / "wider", text={"hidden_size": 128}), tmp_path / "tiny.gguf", lambda name: "F16"
    )
    projector_of(llava, tmp_path / "mmproj.gguf")
    with pytest.raises(StartupError, match="rows of 64 do not fit a text model of hidden size 128"):
        directory_of(file, tmp_path)


def test_several_projectors_beside_a_model_are_refused(llava: Path, tmp_path: Path) -> None:
    projector_of(llava, tmp_path / "mmproj-f32.gguf")
    with pytest.raises(StartupError, match=r"several projectors \(mmproj-f32.gguf, mmproj-tiny-f16.gguf\): keep one"):
        made(llava, tmp_path)


def test_a_projector_is_not_a_model(llava: Path, tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="is a projector: name the language model's file beside it"):
        directory_of(projector_of(llava, tmp_path / "mmproj.gguf"), tmp_path)


def test_a_vocabulary_without_the_token_of_pictures_is_refused(llava: Path, tmp_path: Path) -> None:
    file = gguf_of(llava, tmp_path / "tiny.gguf", lambda name: "F16")
    projector_of(llava, tmp_path / "mmproj.gguf")
    file.write_bytes(file.read_bytes().replace(b"<image>", b"<empty>"))
    with pytest.raises(StartupError, match="the vocabulary has no token <image>"):
        directory_of(file, tmp_path)
