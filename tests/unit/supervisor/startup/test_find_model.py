"""mmserve's own code computes what has an entry; transformers is asked about the rest, in another process."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mmserve.checkpoint.spec import LayerSpec, ModelSpec, TextSpec
from mmserve.config.config import Config
from mmserve.processors.registry import processor_for
from mmserve.runtime.errors import StartupError
from mmserve.supervisor.startup.find_model import find_model, read_model
from tests.fakes.models.chat_models import write_chat_model

NEOX = {"architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox"}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
TEXT = TextSpec(
    hidden_size=64,
    intermediate_size=96,
    layers=(LayerSpec(rope=None),),
    num_heads=4,
    num_kv_heads=4,
    head_dim=16,
    vocab_size=260,
    max_position=512,
    rms_eps=0.0,
)


def checkpoint(directory: Path, config: dict[str, Any]) -> Path:
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "model.safetensors").touch()
    return directory


def answer(monkeypatch: pytest.MonkeyPatch, code: int, stdout: str, stderr: str = "") -> list[list[str]]:
    """What the child answers. Returns the commands that were run."""
    commands: list[list[str]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, code, stdout, stderr)

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_own_code_is_not_asked_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = answer(monkeypatch, 1, "")
    assert read_model(checkpoint(tmp_path, LLAMA), "auto").family == "llama"
    assert not commands


@pytest.mark.parametrize(("config", "impl"), [(NEOX, "auto"), (NEOX, "transformers"), (LLAMA, "transformers")])
def test_transformers_describes_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, config: dict[str, Any], impl: str
) -> None:
    directory = checkpoint(tmp_path, config)
    described = ModelSpec(family="transformers", path=str(directory), text=TEXT)
    commands = answer(monkeypatch, 0, "a line of a library\n" + msgspec.json.encode(described).decode() + "\n")
    found = find_model(Config(model=str(directory), model_impl=impl))  # type: ignore[arg-type]
    assert found == described
    assert commands[0][-1] == str(directory)
    assert "slower than mmserve's own code" in caplog.text


def test_refused_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = checkpoint(tmp_path, NEOX)
    with pytest.raises(StartupError, match="architectures served are"):
        read_model(directory, "mmserve")
    answer(monkeypatch, 1, "its attention is not causal\n", "a warning")
    with pytest.raises(StartupError, match=r"GPTNeoXForCausalLM is not supported, .*: its attention is not causal"):
        read_model(directory, "auto")
    answer(monkeypatch, -9, "")
    with pytest.raises(StartupError, match="exit code -9"):
        read_model(directory, "auto")


def test_without_transformers_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StartupError, match=r"pip install 'mmserve\[transformers\]'"):
        read_model(checkpoint(tmp_path, NEOX), "auto")


def test_the_users_settings_of_the_image_processor_are_part_of_the_model(tmp_path: Path) -> None:
    config = Config(model=str(write_chat_model(tmp_path)), mm_processor_kwargs={"resample": 2})
    model = find_model(config)
    processor = processor_for(model)
    assert processor is not None
    assert processor.settings_digest() != processor_for(read_model(tmp_path, "auto")).settings_digest()  # type: ignore[union-attr]
    with pytest.raises(StartupError, match=r"no setting 'max_pixels'; it has .*crop_size"):
        processor_for(find_model(msgspec.structs.replace(config, mm_processor_kwargs={"max_pixels": 5})))


def test_a_text_model_has_no_image_processor_to_set(tmp_path: Path) -> None:
    directory = write_chat_model(tmp_path, images=False)
    with pytest.raises(StartupError, match="has no image processor"):
        find_model(Config(model=str(directory), mm_processor_kwargs={}))
