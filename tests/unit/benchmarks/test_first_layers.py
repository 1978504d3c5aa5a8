"""A draft model of a model's own first layers."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from benchmarks.first_layers import write
from mmserve.checkpoint.load import load
from tests.fakes.models.checkpoints import in_shards, make_llama


@pytest.mark.parametrize("is_sharded", [False, True])
def test_the_first_layers_are_a_checkpoint(tmp_path: Path, is_sharded: bool) -> None:
    source = make_llama(tmp_path / "source")
    if is_sharded:
        (tmp_path / "shards").mkdir()
        source = in_shards(source, tmp_path / "shards")
    write(source, tmp_path / "draft", 1)
    assert load(tmp_path / "draft").text.num_layers == 1
    names = load_file(tmp_path / "draft" / "model.safetensors").keys()
    assert {name.split(".")[2] for name in names if ".layers." in name} == {"0"}
    assert {"lm_head.weight", "model.norm.weight", "model.embed_tokens.weight"} < set(names)
    assert (tmp_path / "draft" / "tokenizer.json").exists()
