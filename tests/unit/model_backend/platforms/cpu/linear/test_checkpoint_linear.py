"""Quantized checkpoints give the tokens that transformers computes with the float32 numbers they stand for."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file

from mmserve.checkpoint.load import load
from mmserve.model_backend.loader.load import load_tower
from mmserve.model_backend.platforms.cpu.library import compiler
from mmserve.model_backend.platforms.device import platform_for
from mmserve.model_backend.platforms.reference import TorchPlatform
from mmserve.processors.registry import processor_for
from mmserve.runtime.errors import StartupError
from tests.fakes.formats.quantized_checkpoints import (
    Format,
    awq,
    float8,
    fp8,
    gptq,
    int8,
    packed,
    quantize_checkpoint,
)
from tests.fakes.models.checkpoints import VOCAB, make_llama, make_text
from tests.fakes.models.picture_families import QUANTIZABLE
from tests.fakes.models.qwen_vl import make_qwen_vl
from tests.fakes.models.stored_experts import separate_experts, stack_experts
from tests.fakes.pictures.media import png
from tests.fakes.pictures.tower_inputs import read_by_tower
from tests.fakes.ranks.engine import Driver, Engine, make_runner
from tests.fakes.ranks.ranks_in_threads import RanksInThreads

pytestmark = pytest.mark.skipif(
    not compiler.compilers(), reason="no C++ compiler on this machine, so no quantized weights either"
)
SHAPE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}
PROMPTS = [[(7 * i + 11 * n) % (VOCAB - 4) + 4 for i in range(length)] for n, length in enumerate((1, 5, 33, 70))]
NUM_TOKENS = 12
FORMATS = {
    "awq": awq(),
    "awq of 64": awq(64),
    "gptq": gptq(),
    "gptq symmetric": gptq(sym=True),
    "gptq of 64": gptq(group=64),
    "gptq of all inputs": gptq(group=None),
    "gptq version 2": gptq(version=2),
    "gptq symmetric, version 2 named 1": gptq(sym=True, version=0),
    "gptq act-order": gptq(desc_act=True),
    "gptq act-order, symmetric": gptq(desc_act=True, sym=True),
    "gptq 8 bits": gptq(bits=8),
    "gptq 8 bits, symmetric, act-order": gptq(bits=8, sym=True, desc_act=True),
    "packed": packed(),
    "packed, asymmetric": packed(symmetric=False),
    "packed of 64": packed(group=64),
    "packed of all inputs": packed(group=None),
    "packed, asymmetric, of all inputs": packed(group=None, symmetric=False),
    "packed, act-order": packed(actorder="group"),
    "packed, act-order of the weights": packed(actorder="weight"),
    "packed 8 bits": packed(bits=8),
    "packed 8 bits, asymmetric, of all inputs": packed(bits=8, group=None, symmetric=False),
    "int8": int8(rounds_inputs=False),
    "int8, asymmetric": int8(rounds_inputs=False, symmetric=False),
    "int8 of a tensor": int8(strategy="tensor", rounds_inputs=False),
    "float8 of an output": float8("channel"),
    "float8 of a tensor": float8("tensor"),
    "fp8": fp8(),
    "fp8 with scales of inputs": fp8(static=True),
    "fp8 in blocks": fp8((48, 32)),
    "fp8 in large blocks": fp8((128, 128)),
}


def expected(directory: Path) -> list[list[int]]:
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    return [_generated(model, prompt) for prompt in PROMPTS]


def rounded_to_8_bits(x: torch.Tensor) -> torch.Tensor:
    """As compressed-tensors defines inputs of 8 bits, dynamic and symmetric, with a scale for each token."""
    scale = (x.abs().amax(-1, keepdim=True) / (255 / 2)).clamp(min=torch.finfo(torch.float32).tiny)
    return (x / scale).clamp(-128, 127).round() * scale


def _generated(model: Any, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NUM_TOKENS, eos_token_id=-1
    )
    found: list[int] = out[0, len(prompt) :].tolist()
    return found


def written(engine: Engine, *, chunk: int = 20) -> list[list[int]]:
    driver = Driver(engine, chunk=chunk)
    sequences = [driver.add(slot, prompt) for slot, prompt in enumerate(PROMPTS)]
    driver.run(NUM_TOKENS)
    return [sequence.output[:NUM_TOKENS] for sequence in sequences]


@pytest.mark.parametrize("name", FORMATS)
def test_tokens_equal_transformers_with_the_dequantized_weights(tmp_path: Path, name: str) -> None:
    directory, plain = make_llama(tmp_path / "q", **SHAPE), tmp_path / "plain"
    quantize_checkpoint(directory, FORMATS[name], plain)
    assert written(make_runner(directory)) == expected(plain)


@pytest.mark.parametrize("form", [int8(), int8(strategy="tensor"), int8(symmetric=False)])
def test_inputs_are_rounded_for_each_token_where_the_checkpoint_says_so(tmp_path: Path, form: Format) -> None:
    """Of a layer, not of tokens: a sum with other last bits, as transformers has them, may be rounded elsewhere."""
    directory = quantize_checkpoint(make_llama(tmp_path / "q", **SHAPE), form, tmp_path / "plain")
    model: Any = make_runner(directory)._model
    weight = load_file(tmp_path / "plain" / "model.safetensors")["model.layers.1.mlp.down_proj.weight"]
    x = torch.randn(9, 128, generator=torch.manual_seed(1)) * torch.logspace(-3, 3, 9)[:, None]
    x[3] = 0
    found, rounded = model.layers[1].mlp.down.method.apply(x), rounded_to_8_bits(x)
    error = 1e-5 * F.linear(x.abs(), weight.abs())
    assert ((found - F.linear(rounded, weight)).abs() <= error).all()
    assert ((found - F.linear(x, weight)).abs() > error)[[0, 8]].any(1).all(), "inputs that stay would pass"


@pytest.mark.parametrize("name", ["awq", "gptq", "gptq 8 bits", "packed, asymmetric", "int8", "fp8", "fp8 in blocks"])
def test_two_ranks_divide_packed_weights_by_outputs_and_by_inputs(tmp_path: Path, name: str) -> None:
    directory = quantize_checkpoint(make_llama(tmp_path / "q", **SHAPE), FORMATS[name], tmp_path / "plain")
    with closing(RanksInThreads(directory)) as ranks:
        assert written(ranks) == expected(tmp_path / "plain")


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (gptq(desc_act=True), "act-order, which is supported with --tp 1"),
        (awq(64), "64 inputs together"),
        (packed(actorder="group"), "act-order, which is supported with --tp 1"),
        (int8(), "rounds whole rows of its inputs"),
        (fp8((128, 128)), "blocks of 128 inputs"),
    ],
)
def test_what_ranks_cannot_divide_is_refused(tmp_path: Path, form: Format, reason: str) -> None:
    llama = make_llama(tmp_path / "q", **(SHAPE | {"intermediate_size": 192}))
    directory = quantize_checkpoint(llama, form, tmp_path / "plain", ("down_proj",))
    with pytest.raises(StartupError, match=reason):
        RanksInThreads(directory)


@pytest.mark.parametrize("family", ["qwen2", "qwen3_moe", "gemma3_text"])
def test_other_families(tmp_path: Path, family: str) -> None:
    changes = {"moe_intermediate_size": 64} if family == "qwen3_moe" else {}
    directory = make_text(tmp_path / "q", family, **(SHAPE | changes))
    separate_experts(directory)
    quantize_checkpoint(directory, awq(), tmp_path / "plain")
    assert written(make_runner(directory)) == expected(tmp_path / "plain")


@pytest.mark.parametrize("name", ["awq", "gptq", "fp8 in large blocks"])
@pytest.mark.parametrize("family", QUANTIZABLE)
def test_the_text_behind_an_unquantized_tower(tmp_path: Path, family: str, name: str) -> None:
    directory, plain = QUANTIZABLE[family](tmp_path / "q"), tmp_path / "plain"
    separate_experts(directory)
    quantize_checkpoint(directory, FORMATS[name], plain)
    assert written(make_runner(directory)) == _of_transformers(plain)
    assert torch.equal(_rows(directory), _rows(plain))


def _of_transformers(plain: Path) -> list[list[int]]:
    """What the text of a model with pictures writes. Its experts are stacked first, as transformers reads them."""
    stack_experts(plain)
    model = transformers.AutoModelForImageTextToText.from_pretrained(plain, dtype=torch.float32)
    return [_generated(model, prompt) for prompt in PROMPTS]


def _rows(directory: Path) -> torch.Tensor:
    """Of a picture."""
    model = load(directory)
    processor = processor_for(model)
    assert processor is not None
    pictures = read_by_tower(processor, [processor.views(png(1, 60, 50))])
    return load_tower(model, platform_for("cpu", "float32"), lambda *_: None)(pictures)[0]


def test_stacked_experts_in_fp8(tmp_path: Path) -> None:
    """As Qwen3-VL's mixtures of experts are published: matrices and scales as [experts, in, out]."""
    directory, plain = QUANTIZABLE["qwen3_vl_moe"](tmp_path / "q"), tmp_path / "plain"
    separate_experts(directory)
    quantize_checkpoint(directory, fp8((32, 32)), plain)
    stack_experts(directory, transposed=True)
    assert written(make_runner(directory)) == _of_transformers(plain)
    with closing(RanksInThreads(directory)) as ranks:
        assert written(ranks) == _of_transformers(plain)


@pytest.mark.parametrize(
    ("form", "size"), [(fp8((128, 128)), 96), (fp8((48, 32)), 96), (fp8((32, 32)), 112), (fp8(), 96)]
)
def test_experts_stacked_in_fp8_without_whole_blocks_are_refused(tmp_path: Path, form: Format, size: int) -> None:
    directory = make_qwen_vl(tmp_path / "q", "qwen3_vl_moe", text={"moe_intermediate_size": size})
    separate_experts(directory)
    quantize_checkpoint(directory, form, tmp_path / "plain")
    stack_experts(directory, transposed=True)
    with pytest.raises(StartupError, match=r"experts\.down_proj .*whole square blocks"):
        make_runner(directory)


def test_layers_that_stay_unquantized_are_read_as_they_are(tmp_path: Path) -> None:
    directory = quantize_checkpoint(
        make_llama(tmp_path / "q", **SHAPE), awq(), tmp_path / "plain", ("o_proj", "gate_proj", "up_proj")
    )
    assert written(make_runner(directory)) == expected(tmp_path / "plain")


def test_a_fused_layer_of_both_kinds_is_refused(tmp_path: Path) -> None:
    directory = quantize_checkpoint(make_llama(tmp_path / "q", **SHAPE), awq(), tmp_path / "plain", ("q_proj",))
    with pytest.raises(StartupError, match=r"q_proj, .*k_proj, .* some are quantised and some not"):
        make_runner(directory)


def test_float8_that_is_not_a_number_is_refused(tmp_path: Path) -> None:
    directory = quantize_checkpoint(make_llama(tmp_path / "q", **SHAPE), fp8(), tmp_path / "plain")
    tensors = load_file(directory / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"].view(torch.uint8)[5, 7] = 255
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(StartupError, match=r"down_proj has weights that are NaN"):
        make_runner(directory)


def test_biases_of_zeros_beside_codes_are_left_out_and_others_refused(tmp_path: Path) -> None:
    directory = quantize_checkpoint(make_llama(tmp_path / "q", **SHAPE), gptq(), tmp_path / "plain")
    tensors, name = load_file(directory / "model.safetensors"), "model.layers.1.mlp.up_proj.bias"
    tensors[name] = torch.zeros(128)
    save_file(tensors, directory / "model.safetensors")
    assert written(make_runner(directory)) == expected(tmp_path / "plain")
    tensors[name][3] = 1
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(StartupError, match=f"unexpected tensor {name}"):
        make_runner(directory)


def test_different_orders_of_the_same_inputs_are_refused(tmp_path: Path) -> None:
    directory = quantize_checkpoint(make_llama(tmp_path / "q", **SHAPE), gptq(desc_act=True), tmp_path / "plain")
    tensors = load_file(directory / "model.safetensors")
    tensors["model.layers.0.self_attn.k_proj.g_idx"] = tensors["model.layers.0.self_attn.k_proj.g_idx"].flip(0)
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(StartupError, match=r"q_proj and .*k_proj are quantised in different act-orders"):
        make_runner(directory)


def test_a_tensor_of_another_type_is_refused(tmp_path: Path) -> None:
    directory = quantize_checkpoint(make_llama(tmp_path / "q", **SHAPE), gptq(), tmp_path / "plain")
    tensors = load_file(directory / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.qzeros"] = tensors["model.layers.0.mlp.up_proj.qzeros"].float()
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(StartupError, match=r"up_proj.qzeros has dtype F32"):
        make_runner(directory)


def test_without_kernels_a_quantized_checkpoint_is_refused(tmp_path: Path) -> None:
    directory = quantize_checkpoint(make_llama(tmp_path / "q", **SHAPE), awq(), tmp_path / "plain")
    with pytest.raises(StartupError, match=r"AWQ, 4 bits, groups of 32, zero points\) needs a CPU"):
        make_runner(directory, platform=TorchPlatform(torch.device("cpu"), torch.float32))


def test_a_quantized_head_is_refused(tmp_path: Path) -> None:
    directory = make_llama(tmp_path / "q", **SHAPE, vocab_size=272)
    quantize_checkpoint(directory, awq(), tmp_path / "plain", ("lm_head",))
    assert json.loads((directory / "config.json").read_text())["tie_word_embeddings"] is False
    with pytest.raises(StartupError, match=r"lm_head is quantised"):
        make_runner(directory)
