"""What a checkpoint is to transformers, found without its weights; what cannot be served is refused with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from mmserve.model_backend.models.generic.describe import describe, main
from mmserve.model_backend.models.generic.masks import window_of
from mmserve.runtime.errors import StartupError
from tests.fakes.models.checkpoints import BOS, EOS, VOCAB

TINY: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": 0,
}


def config(directory: Path, model_type: str, architecture: str, **changes: Any) -> Path:
    """A checkpoint directory without weights."""
    made = transformers.AutoConfig.for_model(model_type, **(TINY | changes))
    made.architectures = [architecture]
    made.save_pretrained(directory)
    return directory


def test_sizes_are_those_that_the_modules_use(tmp_path: Path) -> None:
    layers = {"sliding_window": 21, "layer_types": ["sliding_attention", "full_attention"]}
    spec = describe(config(tmp_path, "cohere2", "Cohere2ForCausalLM", **layers))
    text = spec.text
    assert (spec.family, spec.eos_token_ids, spec.bos_token_id) == ("transformers", (EOS,), BOS)
    assert (text.num_heads, text.num_kv_heads, text.head_dim) == (8, 4, 8)
    assert (text.hidden_size, text.vocab_size, text.max_position) == (64, VOCAB, 512)
    assert [layer.window for layer in text.layers] == [21, None]


def test_a_window_as_long_as_the_context_is_none(tmp_path: Path) -> None:
    spec = describe(config(tmp_path, "starcoder2", "Starcoder2ForCausalLM", sliding_window=512))
    assert [layer.window for layer in spec.text.layers] == [None, None]


ROPE = {"rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 256}
LONGROPE = ROPE | {"rope_type": "longrope", "long_factor": [1.0] * 4, "short_factor": [1.0] * 4}
MLA = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
REFUSED: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "recurrent": ("mamba", "MambaForCausalLM", {}, "keeps a recurrent state"),
    "encoder and decoder": ("t5", "T5ForConditionalGeneration", {}, "an encoder and a decoder"),
    "not a language model": ("bert", "BertForMaskedLM", {}, "not a language model"),
    "not causal": ("bert", "BertLMHeadModel", {}, "neither causal nor"),
    "a classifier": ("granite", "GraniteForSequenceClassification", {}, "not a language model"),
    "compressed keys and values": ("deepseek_v3", "DeepseekV3ForCausalLM", MLA | {"head_dim": 8}, "its keys are"),
    "attention within chunks": ("llama4_text", "Llama4ForCausalLM", {"attention_chunk_size": 32}, "chunked"),
    "attention sinks": ("gpt_oss", "GptOssForCausalLM", {"num_local_experts": 2, "head_dim": 8}, "asks for 's_aux'"),
    "rope by the batch": ("granite", "GraniteForCausalLM", {"rope_parameters": LONGROPE}, "rope type 'longrope'"),
    "positions as biases": ("bloom", "BloomForCausalLM", {}, "0 of its 2 layers call"),
    "a table of attention": ("falcon", "FalconForCausalLM", {}, "do not use transformers' attention interface"),
    "another table": ("gptj", "GPTJForCausalLM", {"rotary_dim": 4}, "do not use transformers' attention interface"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_refused_with_the_reason(tmp_path: Path, name: str) -> None:
    model_type, architecture, changes, reason = REFUSED[name]
    with pytest.raises(StartupError, match=reason):
        describe(config(tmp_path, model_type, architecture, **changes))


def test_unknown_architecture_and_code_in_the_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    remote = {"model_type": "new_one", "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(remote))
    (tmp_path / "evil.py").write_text("raise SystemExit('run')")
    assert main(str(tmp_path)) == 1
    assert "no model type 'new_one', and code from a checkpoint is never run" in capsys.readouterr().out


def causal(batch: Any, head: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return key <= query


@pytest.mark.parametrize("window", [1, 5, 99, 100, 200])
def test_windows_are_read_from_masks(window: int) -> None:
    found = window_of(lambda b, h, q, k: (k <= q) & (k > q - window), 100)
    assert found == (window if window < 100 else None)
    assert window_of(causal, 100) is None


@pytest.mark.parametrize(
    "mask",
    [
        lambda b, h, q, k: (k <= q) & (k // 10 == q // 10),
        lambda b, h, q, k: k >= 0,
        lambda b, h, q, k: ((k <= q) & (k > q - 8)) | (k < 4),
        lambda b, h, q, k: (k <= q) & (k % 2 == q % 2),
    ],
    ids=["chunks", "bidirectional", "sinks", "strides"],
)
def test_other_masks_are_refused(mask: Any) -> None:
    with pytest.raises(StartupError, match="neither causal nor a sliding window"):
        window_of(mask, 100)
