"""benchmarks.models: every family is measured, mmserve reads the shapes, rates are compared with vLLM's."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from benchmarks import models
from benchmarks.checkpoints.shapes import LARGE, SHAPES, SMALL, Sizes, write_settings
from benchmarks.checkpoints.tokenizer import VOCAB, special_ids, tokenizer
from mmserve.checkpoint.registry import ARCHITECTURES, read_model
from mmserve.cli.bench.plan import words
from mmserve.processors.registry import processor_for

ROWS = {
    **{"Qwen2.5-VL": 391, "Qwen3-VL": 300, "InternVL": 320, "SmolVLM": 208},
    **{"Gemma-3": 256, "Mistral-Small-3": 414},
}
"""Of a picture of 640x480."""


def test_every_family_has_a_tiny_checkpoint_and_a_load_with_pictures_if_it_takes_them() -> None:
    tiny = {model.name: model.load.images for model in models.MODELS if model.group == "tiny"}
    assert tiny.keys() == set(ARCHITECTURES.values()) | {"pixtral"}
    assert (tiny["llama"], tiny["qwen3_moe"], tiny["llava"], tiny["gemma3"], tiny["pixtral"]) == (0, 0, 1, 1, 1)


@pytest.mark.parametrize(("name", "sizes"), [*((name, SMALL) for name in SHAPES), ("Qwen2.5-VL", LARGE)])
def test_a_picture_becomes_as_many_rows_as_the_documentation_says(tmp_path: Path, name: str, sizes: Sizes) -> None:
    config = write_settings(tmp_path, name, sizes)
    architecture = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[config.model_type]
    processor = processor_for(read_model(tmp_path, config.to_dict() | {"architectures": [architecture]}))
    assert processor is not None
    assert processor.expand(640, 480).num_rows == ROWS[name]


def test_a_word_of_the_loads_is_one_token_and_special_tokens_end_the_vocabulary() -> None:
    special = ("<end>", "<pad>", "<image>")
    made = tokenizer(special, "", {"image_token": "<image>"})
    assert len(made(" " + words(random.Random(1), 50)).input_ids) == 50
    assert len(made) == VOCAB
    assert special_ids(special) == dict(zip(special, made.convert_tokens_to_ids(list(special)), strict=True))
    assert (made.eos_token, made.pad_token, made.image_token) == special


def test_rates_are_compared_with_vllms_where_both_served_the_model() -> None:
    def row(model: str, server: str, rate: float) -> dict[str, object]:
        return {"model": model, "server": server, "requests/s": rate}

    rows = [row("a", "mmserve", 2.7), row("a", "vllm", 2.0), row("b", "mmserve", 2.5), row("b", "vllm", 2.0)]
    assert [each["met"] for each in models.ratios([*rows, row("c", "mmserve", 1.0)])] == ["yes", "no"]
