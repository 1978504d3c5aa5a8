"""Checkpoint directories are read into a ModelSpec, or refused with one line."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from mmserve.checkpoint.files import weight_files
from mmserve.checkpoint.load import check_tp, load
from mmserve.checkpoint.registry import ARCHITECTURES, module_name
from mmserve.checkpoint.spec import ModelSpec, Rope
from mmserve.runtime.errors import StartupError

LLAVA_7B: dict[str, Any] = {
    "architectures": ["LlavaForConditionalGeneration"],
    "ignore_index": -100,
    "image_token_index": 32000,
    "model_type": "llava",
    "pad_token_id": 32001,
    "projector_hidden_act": "gelu",
    "text_config": {
        "_name_or_path": "lmsys/vicuna-7b-v1.5",
        "architectures": ["LlamaForCausalLM"],
        "max_position_embeddings": 4096,
        "model_type": "llama",
        "rms_norm_eps": 1e-05,
        "torch_dtype": "float16",
        "vocab_size": 32064,
    },
    "torch_dtype": "float16",
    "vision_config": {
        "hidden_size": 1024,
        "image_size": 336,
        "intermediate_size": 4096,
        "model_type": "clip_vision_model",
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "patch_size": 14,
        "projection_dim": 768,
        "vocab_size": 32000,
    },
    "vision_feature_layer": -2,
    "vision_feature_select_strategy": "default",
}


FACTORS = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}


def checkpoint(directory: Path, config: dict[str, Any], **files: Any) -> Path:
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "model.safetensors").touch()
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


def llama(**changes: Any) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "num_attention_heads": 8,
        **changes,
    }


def test_omitted_keys_have_the_values_of_llava_7b(tmp_path: Path) -> None:
    spec = load(checkpoint(tmp_path, LLAVA_7B))
    assert spec.family == "llava"
    assert spec.image_token_id == 32000
    assert spec.checkpoint_dtype == "float16"
    assert (spec.text.hidden_size, spec.text.num_layers, spec.text.num_kv_heads, spec.text.head_dim) == (
        4096,
        32,
        32,
        128,
    )
    assert (spec.text.vocab_size, spec.text.max_position, spec.text.rms_eps) == (32064, 4096, 1e-5)
    assert spec.vision is not None
    assert spec.vision.num_rows == 576
    assert spec.vision.activation == "quick_gelu"
    assert spec.eos_token_ids == (2,)
    assert spec.bos_token_id == 1


def test_llava_without_sub_configs_is_the_7b(tmp_path: Path) -> None:
    spec = load(checkpoint(tmp_path, {"model_type": "llava"}))
    assert spec.vision is not None
    assert (spec.vision.image_size, spec.vision.num_layers, spec.vision.num_rows) == (336, 24, 576)
    assert spec.text.hidden_size == 4096


def test_full_strategy_keeps_the_class_token(tmp_path: Path) -> None:
    spec = load(checkpoint(tmp_path, {**LLAVA_7B, "vision_feature_select_strategy": "full"}))
    assert spec.vision is not None
    assert spec.vision.num_rows == 577


def transformers_specs() -> list[Any]:
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, MistralConfig

    rope = {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    }
    small = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = LlamaConfig(vocab_size=128, num_key_value_heads=2, rope_parameters=rope, **small)
    return [
        text,
        LlamaConfig(vocab_size=128, head_dim=32, tie_word_embeddings=True, attention_bias=True, **small),
        MistralConfig(vocab_size=128, sliding_window=None, **small),
        LlavaConfig(
            text_config=text, vision_config=CLIPVisionConfig(image_size=28, patch_size=14, **small), image_token_index=7
        ),
    ]


@pytest.mark.parametrize("number", range(4))
def test_configs_written_by_transformers_are_read(tmp_path: Path, number: int) -> None:
    config = transformers_specs()[number]
    config.architectures = {
        "llama": ["LlamaForCausalLM"],
        "mistral": ["MistralForCausalLM"],
        "llava": ["LlavaForConditionalGeneration"],
    }[config.model_type]
    config.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").touch()
    spec = load(tmp_path)
    text = getattr(config, "text_config", config)
    assert spec.text.num_kv_heads == text.num_key_value_heads
    assert spec.text.head_dim == text.head_dim
    rope = spec.text.layers[0].rope
    assert rope is not None
    assert (rope.theta, rope.kind) == (text.rope_parameters["rope_theta"], text.rope_parameters["rope_type"])
    assert spec.text.tie_embeddings == text.tie_word_embeddings
    assert spec.text.max_position == text.max_position_embeddings
    assert spec.text.qkv_bias == spec.text.attention_out_bias == getattr(text, "attention_bias", False)
    if spec.family == "llava":
        assert spec.image_token_id == 7
        assert spec.vision is not None
        assert spec.vision.num_rows == 4
        assert spec.vision.layer_norm_eps == config.vision_config.layer_norm_eps


def test_rope_scaling_is_read_from_both_spellings(tmp_path: Path) -> None:
    old = load(checkpoint(tmp_path, llama(rope_theta=1e6, rope_scaling={"type": "linear", "factor": 2.0})))
    new = load(checkpoint(tmp_path, llama(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6})))
    assert old.text == new.text
    assert old.text.layers[0].rope == Rope(theta=1e6, kind="linear", factor=2.0, original_max_position=2048)


def test_yarn_stretches_the_context(tmp_path: Path) -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    for longest in (32768, 131072):
        config = {"model_type": "qwen2", "max_position_embeddings": longest, "rope_scaling": scaling}
        text = load(checkpoint(tmp_path, config)).text
        assert text.max_position == 131072
        assert text.layers[0].rope is not None
        assert text.layers[0].rope.amplitude == pytest.approx(1.138629)


def test_eos_ids_of_generation_config_and_tokenizer(tmp_path: Path) -> None:
    spec = load(
        checkpoint(
            tmp_path,
            llama(eos_token_id=5),
            generation_config={"eos_token_id": [7, 8], "bos_token_id": 6},
            tokenizer_config={"eos_token": {"content": "<|end|>"}},
            tokenizer={"added_tokens": [{"id": 9, "content": "<|end|>"}, {"id": 3, "content": "<s>"}]},
        )
    )
    assert spec.eos_token_ids == (7, 8, 9)
    assert spec.bos_token_id == 6


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"architectures": ["Qwen2MoeForCausalLM"]}, "Qwen2MoeForCausalLM is not supported; .* LlamaForCausalLM, Mis"),
        ({"model_type": "qwen2_moe"}, "qwen2_moe is not supported"),
        ({"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 5}, "num_experts_per_tok 5 of 4"),
        ({"model_type": "phi3", "rope_scaling": {"type": "su"}}, "lacks its short_factor"),
        ({"model_type": "phi3", "rope_scaling": {"type": "su", **FACTORS}}, "must be 48 numbers each"),
        ({"model_type": "gemma3_text", "final_logit_softcapping": 30.0}, "soft cap"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "encoder"),
        ({**LLAVA_7B, "text_config": {"model_type": "llava"}}, "text model 'llava'"),
        ({"model_type": "qwen2", "layer_types": ["full_attention", "linear_attention"] * 16}, "linear_attention"),
        ({"model_type": "qwen3", "layer_types": ["full_attention"]}, "names 1 layers of 32"),
        ({"model_type": "smollm3", "no_rope_layers": [1, 0]}, "no_rope_layers names 2 layers of 36"),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 0}, "sliding_window 0"),
        (llama(partial_rotary_factor=0.5), "partial_rotary_factor"),
        ({**LLAVA_7B, "text_config": {"model_type": "gemma"}}, "gemma"),
        ({**LLAVA_7B, "vision_config": {"model_type": "siglip_vision_model"}}, "siglip"),
        ({**LLAVA_7B, "vision_feature_layer": [-2, -3]}, "vision_feature_layer"),
        (llama(quantization_config={"bits": 4}), "quantised checkpoint: quant_method None"),
        (llama(compression_config={"quant_method": "sparsegpt"}), "quantised checkpoint: quant_method 'sparsegpt'"),
        (llama(rope_scaling={"rope_type": "longrope", "factor": 2.0}), "longrope"),
        (llama(rope_scaling={"rope_type": "yarn"}), "lacks its factor"),
        (llama(rope_parameters={"partial_rotary_factor": 0.5}), "partial_rotary_factor"),
        (llama(rope_parameters={"type": "mrope", "mrope_section": [16, 24, 23]}), "mrope_section .* sum 4"),
        (llama(hidden_size="big"), "hidden_size"),
        (llama(hidden_act="mish"), "mish"),
        ({}, "architectures served are"),
    ],
)
def test_an_unsupported_model_is_refused_with_one_line(tmp_path: Path, config: dict[str, Any], says: str) -> None:
    with pytest.raises(StartupError, match=says) as caught:
        load(checkpoint(tmp_path, config))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        ({"model_type": "mistral"}, [4096] * 4),
        ({"model_type": "mistral", "sliding_window": None}, [None] * 4),
        ({"model_type": "mistral", "max_position_embeddings": 4096}, [None] * 4),
        ({"model_type": "ministral", "layer_types": ["full_attention", "sliding_attention"] * 2}, [None, 4096] * 2),
        ({"model_type": "qwen2", "max_window_layers": 2}, [None] * 4),
        ({"model_type": "qwen2", "max_window_layers": 2, "use_sliding_window": True}, [None, None, 4096, 4096]),
        ({"model_type": "smollm3"}, [None] * 4),
        ({"model_type": "smollm3", "use_sliding_window": True, "sliding_window": 64}, [None, None, None, 64]),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 3}, [4096, 4096, None, 4096]),
        ({"model_type": "qwen3_moe", "use_sliding_window": True}, [4096] * 4),
    ],
)
def test_windows_of_the_layers(tmp_path: Path, config: dict[str, Any], windows: list[int | None]) -> None:
    text = load(checkpoint(tmp_path, {**config, "num_hidden_layers": 4})).text
    assert [layer.window for layer in text.layers] == windows


def test_gemma_3_as_published_before_transformers_5(tmp_path: Path) -> None:
    """``rope_theta`` and ``rope_scaling`` are those of the layers without a window."""
    config = {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "num_hidden_layers": 2,
        "sliding_window_pattern": 2,
        "rope_theta": 1_000_000,
        "rope_local_base_freq": 20_000,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    text = load(checkpoint(tmp_path, config)).text
    local, whole = text.layers
    assert local.rope == Rope(theta=2e4, original_max_position=131072)
    assert whole.rope == Rope(theta=1e6, kind="linear", factor=8.0, original_max_position=131072)
    assert (text.attention_scale, text.embedding_scale, text.activation) == (1 / 16, 48.0, "gelu_pytorch_tanh")


@pytest.mark.parametrize(
    ("config", "experts"),
    [
        ({}, [True] * 4),
        ({"decoder_sparse_step": 2}, [False, True, False, True]),
        ({"mlp_only_layers": [0, 3]}, [False, True, True, False]),
    ],
)
def test_layers_with_experts(tmp_path: Path, config: dict[str, Any], experts: list[bool]) -> None:
    text = load(checkpoint(tmp_path, {"model_type": "qwen3_moe", "num_hidden_layers": 4, **config})).text
    assert [layer.experts for layer in text.layers] == experts
    assert text.intermediate_sizes == ((768,) if all(experts) else (6144, 768))
    assert text.num_mlp_weights == 3 * 2048 * (experts.count(False) * 6144 + experts.count(True) * 128 * 768)


def test_a_family_is_imported_when_it_is_used() -> None:
    code = "import sys, mmserve.checkpoint.load; print([m for m in sys.modules if 'checkpoint.families.' in m])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_every_architecture_has_a_module_for_its_file() -> None:
    for family in ARCHITECTURES.values():
        assert find_spec(module_name(family))


def test_missing_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"config\.json"):
        load(tmp_path)
    checkpoint(tmp_path, llama())
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(StartupError, match="safetensors"):
        load(tmp_path)
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "model-1.safetensors").touch()
    with pytest.raises(StartupError, match="model-2"):
        load(tmp_path)
    (tmp_path / "model-2.safetensors").touch()
    assert [file.name for file in weight_files(tmp_path)] == ["model-1.safetensors", "model-2.safetensors"]
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(StartupError, match="cannot read"):
        load(tmp_path)


def spec_with_heads(tmp_path: Path, heads: int, kv_heads: int) -> ModelSpec:
    return load(
        checkpoint(
            tmp_path,
            llama(hidden_size=576, num_attention_heads=heads, num_key_value_heads=kv_heads, intermediate_size=1536),
        )
    )


def test_a_kv_head_may_be_on_several_ranks(tmp_path: Path) -> None:
    model = spec_with_heads(tmp_path, 12, 2)
    check_tp(model, 4)
    check_tp(model, 12)
    with pytest.raises(StartupError, match=r"--tp 3 .* can be 1, 2, 4, 6, 12$"):
        check_tp(model, 3)


def test_tp_must_divide_the_heads(tmp_path: Path) -> None:
    smollm = spec_with_heads(tmp_path, 9, 3)
    check_tp(smollm, 1)
    check_tp(smollm, 3)
    with pytest.raises(StartupError, match=r"--tp 2 .* can be 1, 3$"):
        check_tp(smollm, 2)
