"""The draft model that --speculative-model names, and its tokens beside those of the served model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mmserve.checkpoint.load import load
from mmserve.config.config import Config
from mmserve.runtime.errors import StartupError
from mmserve.supervisor.startup.find_draft import find_draft
from tests.fakes.models.checkpoints import make_llama


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("llama"))


def with_tokens(directory: Path, tmp_path: Path, **changes: Any) -> Path:
    """The same checkpoint with another tokenizer.json."""
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(directory / name)
    definition = json.loads((directory / "tokenizer.json").read_text())
    definition["model"] |= changes.pop("model", {})
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition | changes))
    return tmp_path


def refused(directory: Path, draft: Path) -> str:
    with pytest.raises(StartupError) as error:
        find_draft(Config(speculative_model=str(draft)), load(directory))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_nothing_is_found_without_the_option(directory: Path) -> None:
    assert find_draft(Config(), load(directory)) is None


def test_a_model_with_the_same_tokens_is_found(directory: Path, tmp_path: Path) -> None:
    found = find_draft(Config(speculative_model=str(with_tokens(directory, tmp_path))), load(directory))
    assert found is not None
    assert found.path == str(tmp_path)


def test_a_token_with_another_id_is_named(directory: Path, tmp_path: Path) -> None:
    vocab = json.loads((directory / "tokenizer.json").read_text())["model"]["vocab"]
    said = refused(directory, with_tokens(directory, tmp_path, model={"vocab": vocab | {"a": 9999}}))
    assert f"'a' is 9999 instead of {vocab['a']}" in said
    assert "--speculative-model" in said


def test_a_token_that_is_missing_is_named(directory: Path, tmp_path: Path) -> None:
    vocab = json.loads((directory / "tokenizer.json").read_text())["model"]["vocab"]
    del vocab["b"]
    assert "'b' is none instead of" in refused(directory, with_tokens(directory, tmp_path, model={"vocab": vocab}))


def test_tokens_that_cannot_be_compared_are_refused(directory: Path, tmp_path: Path) -> None:
    (with_tokens(directory, tmp_path) / "tokenizer.json").unlink()
    assert f"cannot be compared: {tmp_path} holds no tokenizer.json" in refused(directory, tmp_path)


def test_tokens_of_a_unigram_model_are_numbered_in_their_order(directory: Path, tmp_path: Path) -> None:
    vocab = json.loads((directory / "tokenizer.json").read_text())["model"]["vocab"]
    in_order = [[token, -1.0] for token in sorted(vocab, key=vocab.__getitem__)]
    same = with_tokens(directory, tmp_path, model={"type": "Unigram", "vocab": in_order})
    assert find_draft(Config(speculative_model=str(same)), load(directory)) is not None


def test_what_is_no_model_is_refused_by_the_name_of_the_option(directory: Path, tmp_path: Path) -> None:
    assert "--speculative-model nothing here" in refused(directory, Path("nothing here"))
