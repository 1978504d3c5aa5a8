"""``mmserve models`` lists what is served, and says what a checkpoint is, needs, or lacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from mmserve.checkpoint.catalogue import entries
from mmserve.checkpoint.registry import ARCHITECTURES
from mmserve.cli import main as cli

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 4096,
    "dtype": "bfloat16",
}


def checkpoint(directory: Path, **changes: Any) -> str:
    (directory / "config.json").write_text(json.dumps(LLAMA | changes))
    with (directory / "model.safetensors").open("wb") as file:
        file.truncate(3 << 30)
    return str(directory)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = cli.main(["models", *arguments])
    return code, capsys.readouterr().out


def test_every_architecture_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = run(capsys)
    assert code == 0
    assert all(f"{name} " in printed for name in ARCHITECTURES)
    assert "mmserve[transformers]" in printed
    code, printed = run(capsys, "--json")
    assert [entry["architecture"] for entry in json.loads(printed)] == list(ARCHITECTURES)
    unnamed = [entry.architecture for entry in entries() if not entry.models]
    assert not unnamed, "mmserve/checkpoint/catalogue.py lacks them"


def test_what_a_checkpoint_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = run(capsys, checkpoint(tmp_path), "--json")
    assert code == 0
    report = json.loads(printed)
    assert report["weights_bytes"] == {"bfloat16": 3 << 30, "float32": 6 << 30}
    assert report["kv_bytes_per_token"] == {"bfloat16": 2 * 8 * 4 * 64 * 2, "float32": 2 * 8 * 4 * 64 * 4}
    assert (report["context"], report["computed_by"], report["picture_rows"]) == (4096, "mmserve", None)
    code, printed = run(capsys, checkpoint(tmp_path))
    assert code == 0
    assert "LlamaForCausalLM, computed by mmserve's own code" in printed
    assert "3.0 GiB in bfloat16, 6.0 GiB in float32" in printed
    assert "8 KiB a token in bfloat16, 16 KiB in float32" in printed
    assert "32 MiB and 64 MiB a whole context" in printed


def test_the_packaged_model_takes_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = run(capsys, "llava", "--json")
    assert code == 0
    assert json.loads(printed)["picture_rows"] > 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"quantization_config": {}}, "quantised checkpoint: quant_method None"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quant_method 'bitsandbytes'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope type 'dynamic'"),
    ],
)
def test_why_a_checkpoint_is_not_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], reason: str
) -> None:
    code, printed = run(capsys, checkpoint(tmp_path, **changes))
    assert code == 1
    assert reason in printed
    code, printed = run(capsys, checkpoint(tmp_path, **changes), "--json")
    assert code == 1
    assert reason in json.loads(printed)["problem"]


def test_a_quantized_checkpoint_says_its_scheme_and_what_its_codes_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scheme = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": False}
    directory = checkpoint(tmp_path, quantization_config=scheme)
    save_file({"a.qweight": torch.zeros(256, 1024, dtype=torch.int32)}, tmp_path / "model.safetensors")
    code, printed = run(capsys, directory)
    assert code == 0
    assert "1 MiB: GPTQ, 4 bits, groups of 128, zero points, act-order; all else in float32" in printed
    report = json.loads(run(capsys, directory, "--json")[1])
    assert report["quantization"] == "GPTQ, 4 bits, groups of 128, zero points, act-order"
    assert report["weights_bytes"] == {"bfloat16": 1 << 20, "float32": 1 << 20}


def test_a_hub_id_is_not_downloaded(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub.errors import LocalEntryNotFoundError

    def fetch(hub_id: str, *, local_files_only: bool, **options: object) -> str:
        assert local_files_only
        raise LocalEntryNotFoundError("not there")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    code, printed = run(capsys, "owner/name")
    assert code == 1
    assert "owner/name is no directory here, and not on this disk as a model of the hub" in printed
