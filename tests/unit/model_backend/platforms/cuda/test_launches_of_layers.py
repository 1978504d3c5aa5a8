"""How many launches a layer takes in a step, so that one more is noticed.

Not run on a GPU: Triton's launches and torch's operations are counted on a CPU, without their numbers.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from benchmarks.gpu.models.weights import fill
from mmserve.checkpoint.load import load
from mmserve.checkpoint.quantization.scheme import QuantizationScheme
from mmserve.config.resolved.gpu_capability import HOPPER
from mmserve.model_backend.attention.interface import AttentionInput, AttentionSpec, StepLimits
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.loader.registry import family_of
from mmserve.model_backend.models.interface import DecoderModel
from mmserve.model_backend.platforms.cuda import coded_linear
from mmserve.model_backend.platforms.cuda.attention.backend import TritonAttention
from mmserve.model_backend.platforms.cuda.attention.choice import Gpu
from mmserve.model_backend.platforms.cuda.attention.tiling import AttentionTiling, Tiling
from mmserve.model_backend.platforms.cuda.fp8 import trials
from mmserve.model_backend.platforms.cuda.fp8.ops import Fp8Ops
from mmserve.model_backend.platforms.cuda.platform import CudaPlatform
from mmserve.model_backend.platforms.torch_ops import TorchOps
from tests.fakes.devices.launches import counted_launches
from tests.unit.model_backend.platforms.cuda.interpreter import needs_interpreter

pytestmark = needs_interpreter
CPU, BLOCK_TOKENS, BATCH = torch.device("cpu"), 16, 2
TILING = AttentionTiling(Tiling(16, 32, 4, 1), Tiling(64, 32, 4, 1), split_tokens=32, segment_tokens=64)
PRODUCTS = {"mm", "addmm", "addmm_", "_scaled_mm", "coded_product"}
SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
KINDS: dict[str, dict[str, Any]] = {
    "Llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "Qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "Qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
    "Gemma 3": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 32,
        "sliding_window": 16,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
    },
}
FP8 = QuantizationScheme(method="FP8", layout="fp8", bits=8, per_tensor=True, float8_inputs=True)
BLOCKS = QuantizationScheme(method="FP8", layout="fp8", bits=8, block=(128, 128), float8_inputs=True)
ATTENTION = {"turn_and_store": 1, "attend_splits": 1, "merge_splits": 1}
PLAIN = {"norm_rows": 2, **ATTENTION, "gate_rows": 1}
SUMMING = {"add_normed_rows": 2, **ATTENTION, "gate_rows": 1}
ROUNDING = {
    **{"quantize_normed_rows": 2, "turn_and_store": 1, "attend_splits": 1, "merge_rounded_splits": 1},
    "quantize_gated_rows": 1,
}
PROMPT = {
    **{"quantize_normed_rows": 2, "turn_and_store": 1, "prefill_tiles": 1, "quantize_rows": 1},
    "quantize_gated_rows": 1,
}


class Card(CudaPlatform):
    """A Hopper GPU whose kernels work."""

    torch_alone = False

    def ops(self) -> TorchOps:
        if self.torch_alone:
            return TorchOps()
        made = Fp8Ops()
        made.tested = frozenset({"rms_norm", "add_normed_", "rotary_", "act_and_mul"})
        return made

    def attention(self, spec: AttentionSpec, kv_dtype: torch.dtype) -> TritonAttention:
        return TritonAttention(spec, CPU, TILING, num_programs=2)


@pytest.fixture(autouse=True)
def working(monkeypatch: pytest.MonkeyPatch) -> None:
    one = torch.ones(1)

    def scaled_mm(left: torch.Tensor, right: torch.Tensor, *_: Any, bias: Any, output_dtype: torch.dtype) -> Any:
        return torch._scaled_mm(left, right, scale_a=one, scale_b=one, bias=bias, out_dtype=output_dtype)

    monkeypatch.setattr(F, "scaled_mm", scaled_mm)
    monkeypatch.setattr(Gpu, "of", lambda device: Gpu(device, HOPPER, 1, 0))
    monkeypatch.setattr(trials, "works_for_checkpoints", lambda gpu, dtype, form: True)
    monkeypatch.setattr(coded_linear, "check_coded", lambda device, dtype, float8: None)


class Sums:
    """Of a rank whose others have nothing to add. Not counted: NCCL's launches are not those of a layer."""

    def all_reduce(self, tensor: torch.Tensor, op: str) -> None:
        assert op == "sum"


def launched(
    path: Path, kind: str, layers: int, scheme: QuantizationScheme | None, card: Card, ranks: int = 1, chunk: int = 1
) -> Counter[str]:
    """The launches of a step of two sequences, of ``chunk`` tokens each: one to decode."""
    sums: Any = Sums()
    tp = TpGroup() if ranks == 1 else TpGroup(0, ranks, sums, sums)
    config = SIZES | KINDS[kind] | {"num_hidden_layers": layers}
    (path / "config.json").write_text(json.dumps(config))
    spec = load(path, weights=False)
    attention = card.attention(AttentionSpec.of(spec.text, tp), card.dtype)
    decoder = family_of(spec.family).decoder(spec.text, attention, _context(card, scheme, tp))
    fill(decoder.targets(), decoder.modules(), torch.Generator())
    starts, num_rows = np.full(BATCH, 40), BATCH * chunk
    tables, rows = np.arange(BATCH * 4).reshape(BATCH, 4), np.arange(num_rows)
    metadata = attention.builder(StepLimits(num_rows, BATCH, 4, BLOCK_TOKENS)).build(
        AttentionInput(np.arange(BATCH), starts, np.full(BATCH, chunk), tables, rows, None)
    )
    cache = torch.zeros(layers, *attention.kv_shape(4 * BATCH, BLOCK_TOKENS), dtype=card.dtype)
    return _counted(decoder, torch.zeros(num_rows, spec.text.hidden_size, dtype=card.dtype), cache, metadata)


def _context(card: Card, scheme: QuantizationScheme | None, tp: TpGroup) -> LayerContext:
    context = card.layer_context(tp)
    return context if scheme is None else replace(context, linear_method=partial(card.checkpoint_linear_method, scheme))


def _counted(decoder: DecoderModel, hidden: torch.Tensor, cache: torch.Tensor, metadata: Any) -> Counter[str]:
    positions = torch.full((1, len(hidden)), 40)
    with counted_launches() as counts:
        decoder.forward(hidden, positions, cache, metadata, None)
    return counts


def of_a_layer(
    path: Path, kind: str, scheme: QuantizationScheme | None, card: Card, ranks: int = 1, chunk: int = 1
) -> tuple[int, dict[str, int]]:
    """Products, and other launches by name: what a third layer adds to a step."""
    found = launched(path, kind, 3, scheme, card, ranks, chunk)
    found.subtract(launched(path, kind, 2, scheme, card, ranks, chunk))
    found = +found
    return sum(found.pop(name, 0) for name in PRODUCTS), dict(found)


@pytest.mark.parametrize(
    ("kind", "scheme", "small"),
    [
        ("Llama", None, PLAIN),
        ("Qwen2", None, PLAIN),
        ("Qwen3", None, PLAIN),
        ("Gemma 3", None, SUMMING),
        ("Llama", FP8, ROUNDING),
        ("Qwen2", FP8, ROUNDING),
        ("Gemma 3", FP8, ROUNDING),
        ("Qwen3", BLOCKS, ROUNDING),
    ],
)
def test_a_layer_has_four_products_and_so_many_small_launches(
    tmp_path: Path, kind: str, scheme: QuantizationScheme | None, small: dict[str, int]
) -> None:
    products, others = of_a_layer(tmp_path, kind, scheme, Card(CPU, torch.bfloat16))
    assert others == small
    assert products == 4
    assert sum(others.values()) == 6


def test_a_layer_in_fp8_has_six_small_launches_in_a_prompt_too(tmp_path: Path) -> None:
    assert sum(PROMPT.values()) == 6
    assert of_a_layer(tmp_path, "Llama", FP8, Card(CPU, torch.bfloat16), chunk=20) == (4, PROMPT)


def test_a_layer_in_codes_has_its_sums_in_the_norms(tmp_path: Path) -> None:
    weights_alone = QuantizationScheme(method="FP8", layout="fp8", bits=8, per_tensor=True)
    assert of_a_layer(tmp_path, "Llama", weights_alone, Card(CPU, torch.bfloat16)) == (4, SUMMING)


@pytest.mark.parametrize(("scheme", "small"), [(None, SUMMING), (FP8, ROUNDING)])
def test_of_several_ranks_a_layer_has_no_launch_more(
    tmp_path: Path, scheme: QuantizationScheme | None, small: dict[str, int]
) -> None:
    """But those that add up over the ranks: norms add what is then there to the residual."""
    assert of_a_layer(tmp_path, "Llama", scheme, Card(CPU, torch.bfloat16), ranks=2) == (4, small)


def test_launches_that_are_not_fused_are_noticed(tmp_path: Path) -> None:
    """So that the tests above can fail: the same layers without the kernels that round."""
    card = Card(CPU, torch.bfloat16)
    card.torch_alone = True
    products, others = of_a_layer(tmp_path, "Llama", FP8, card)
    assert products == 4
    assert others["quantize_rows"] == 4
    assert sum(others.values()) > 12
