"""``mmserve models`` lists what is served, and says what a checkpoint is, needs, or lacks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from mmserve.checkpoint.catalogue import entries
from mmserve.checkpoint.registry import ARCHITECTURES
from mmserve.cli import main as cli
from mmserve.supervisor.startup import tensor_check
from tests.fakes.models.chat_models import make_tokenizer
from tests.fakes.models.weight_files import sparse_weights

TOKENIZER = make_tokenizer("byte-level")
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
    write_config(directory, LLAMA | changes)
    sparse_weights(directory, {"model.norm.weight": 3 << 29}, "BF16")
    return str(directory)


def write_config(directory: Path, config: dict[str, Any]) -> None:
    """With a tokenizer."""
    (directory / "config.json").write_text(json.dumps(config))
    TOKENIZER.save(str(directory / "tokenizer.json"))


@pytest.fixture
def any_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints whose files hold other tensors than their model's."""
    monkeypatch.setattr(tensor_check, "check_tensors", lambda directory: None)


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


@pytest.mark.usefixtures("any_tensors")
def test_what_a_checkpoint_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = run(capsys, checkpoint(tmp_path), "--json")
    assert code == 0
    report = json.loads(printed)
    assert report["weights_bytes"] == {"bfloat16": 3 << 30, "float32": 6 << 30}
    token = 2 * 8 * 4 * 64
    assert report["kv_bytes_per_token"] == {"bfloat16": token * 2, "float32": token * 4}
    assert report["kv_bytes_of_context"] == {"bfloat16": 4096 * token * 2, "float32": 4096 * token * 4}
    assert (report["context"], report["computed_by"], report["pictures"]) == (4096, "mmserve", None)
    context, arena = 4096 * token, report["arena_bytes"]
    expected = {"bfloat16": (3 << 30) + 2 * context + arena, "float32": (6 << 30) + 4 * context + arena}
    assert report["total_bytes"] == expected
    code, printed = run(capsys, checkpoint(tmp_path))
    assert code == 0
    assert "LlamaForCausalLM, computed by mmserve's own code" in printed
    assert "weights   3.0 GiB in bfloat16, 6.0 GiB in float32" in printed
    assert "a token 8 KiB in bfloat16, 16 KiB in float32" in printed
    assert "a whole context 32 MiB in bfloat16, 64 MiB in float32" in printed
    assert "together  3.0 GiB in bfloat16, 6.1 GiB in float32" in printed


LLAVA: dict[str, Any] = {
    "architectures": ["LlavaForConditionalGeneration"],
    "model_type": "llava",
    "image_token_index": TOKENIZER.token_to_id("<image>"),
    "text_config": LLAMA | {"max_position_embeddings": 8192},
    "dtype": "bfloat16",
}
CLIP_336 = {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}
LLAVA_TENSORS = {
    "language_model.model.norm.weight": 1 << 20,
    "vision_tower.vision_model.post_layernorm.weight": 1 << 18,
    "multi_modal_projector.linear_1.weight": 1 << 16,
    "vision_tower.vision_model.embeddings.position_ids": 577,
}


@pytest.mark.usefixtures("any_tensors")
def test_what_the_pictures_of_a_checkpoint_need(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """LLaVA-1.5's defaults: 576 rows, here 1024 wide. Constants in the files are not counted."""
    write_config(tmp_path, LLAVA)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(CLIP_336))
    sparse_weights(tmp_path, LLAVA_TENSORS, "BF16")
    report = json.loads(run(capsys, str(tmp_path), "--json")[1])
    tower = (1 << 18) + (1 << 16)
    assert report["weights_bytes"] == {"bfloat16": 2 * ((1 << 20) + tower), "float32": 4 * ((1 << 20) + tower)}
    assert report["arena_bytes"] == 1 << 29
    assert report["pictures"] == {
        "rows": 576,
        "embedding_bytes": {"bfloat16": 576 * 1024 * 2, "float32": 576 * 1024 * 4},
        "tower_weights_bytes": {"bfloat16": 2 * tower, "float32": 4 * tower},
        "fit_into_arena": (1 << 29) // (576 * 1024 * 4 + 128),
    }
    printed = run(capsys, str(tmp_path))[1]
    assert "of these the vision tower 640 KiB in bfloat16, 1.25 MiB in float32" in printed
    assert "at most 576 tokens each" in printed
    assert "the largest 1.125 MiB in bfloat16, 2.25 MiB in float32; on a CPU always in float32" in printed
    assert "512 MiB (--mm-cache-gb): room for 227 of the largest pictures in float32" in printed


@pytest.mark.usefixtures("any_tensors")
def test_pictures_that_the_arena_cannot_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wide = LLAVA | {"text_config": LLAMA | {"hidden_size": 1 << 18, "num_attention_heads": 4096}}
    write_config(tmp_path, wide)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(CLIP_336))
    sparse_weights(tmp_path, LLAVA_TENSORS, "BF16")
    assert "too little for the largest picture: raise --mm-cache-gb" in run(capsys, str(tmp_path))[1]


def test_the_packaged_model_takes_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = run(capsys, "llava", "--json")
    assert code == 0
    report = json.loads(printed)
    assert report["pictures"]["rows"] > 0
    tower, weights = report["pictures"]["tower_weights_bytes"], report["weights_bytes"]
    assert 0 < tower["float32"] < weights["float32"]


def test_a_tensor_that_is_wrong_is_a_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = run(capsys, checkpoint(tmp_path), "--json")
    assert code == 1
    assert "tensor model.norm.weight has shape" in json.loads(printed)["problem"]


def test_weights_that_are_not_readable_are_a_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = checkpoint(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not a safetensors file")
    code, printed = run(capsys, directory)
    assert code == 1
    assert "is not a readable safetensors file" in printed


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"quantization_config": {}}, "quantised checkpoint: quant_method None"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quant_method 'bitsandbytes'"),
        ({"rope_scaling": {"type": "proportional", "factor": 2.0}}, "rope type 'proportional'"),
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


@pytest.mark.usefixtures("any_tensors")
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (Path.unlink, "holds no tokenizer.json"),
        (lambda file: file.write_text("{"), "cannot read"),
        (lambda file: file.write_text("{}"), "cannot read the tokenizer of"),
    ],
)
def test_a_tokenizer_that_is_not_readable_is_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], object], reason: str
) -> None:
    directory = checkpoint(tmp_path)
    damage(tmp_path / "tokenizer.json")
    code, printed = run(capsys, directory)
    assert code == 1
    assert reason in printed


@pytest.mark.usefixtures("any_tensors")
def test_a_tokenizer_without_the_models_image_token_is_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(tmp_path, LLAVA | {"image_token_index": 5000})
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(CLIP_336))
    sparse_weights(tmp_path, LLAVA_TENSORS, "BF16")
    code, printed = run(capsys, str(tmp_path), "--json")
    assert code == 1
    assert "the tokenizer has no token '<image>' with config.json's id 5000" in json.loads(printed)["problem"]


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


def test_models_and_plan_say_the_same_of_a_checkpoint(
    tmp_path: Path, any_tensors: None, capsys: pytest.CaptureFixture[str]
) -> None:
    name = checkpoint(tmp_path)
    assert cli.main(["models", name, "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    cli.main(["plan", "--model", name, "--dtype", "bfloat16", "--memory-gb", "16", "--json"])
    planned = json.loads(capsys.readouterr().out)
    assert planned["text_weights_bytes"] + planned["tower_weights_bytes"] == reported["weights_bytes"]["bfloat16"]
    assert planned["kv_bytes_per_token"] == reported["kv_bytes_per_token"]["bfloat16"]
    assert planned["arena_bytes"] == reported["arena_bytes"]


def test_a_plan_counts_the_draft_model(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["plan", "--model", "llava", "--json"])
    without = json.loads(capsys.readouterr().out)
    assert cli.main(["plan", "--model", "llava", "--speculative-model", "llava", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    whole = without["text_weights_bytes"] + without["tower_weights_bytes"]
    assert found["draft_weights_bytes"] == whole
    assert found["kv_bytes_per_token"] == 2 * without["kv_bytes_per_token"]
    assert "--speculative-model llava" in found["flags"]


def test_a_plan_decides_the_dtype_as_the_server_does(
    tmp_path: Path, any_tensors: None, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ["plan", "--model", checkpoint(tmp_path), "--memory-gb", "32", "--json"]

    def dtype(*options: str) -> str:
        assert cli.main([*plan, *options]) == 0
        found: str = json.loads(capsys.readouterr().out)["dtype"]
        return found

    assert dtype("--dtype", "float16") == "float16"
    assert dtype("--kernel-level", "avx2") == "float32", "without instructions for bfloat16"
    assert dtype("--gpu", "h200", "--kernel-level", "avx2") == "bfloat16"
    assert cli.main([*plan, "--gpu", "h200", "--quantization", "int8"]) == 1
    assert "is for a CPU" in capsys.readouterr().err
