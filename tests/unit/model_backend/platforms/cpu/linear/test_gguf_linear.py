"""GGUF files give the tokens that transformers computes with the float32 numbers they stand for."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from mmserve.checkpoint.gguf.directory import directory_of
from mmserve.checkpoint.gguf.table import read_table
from mmserve.checkpoint.load import load
from mmserve.model_backend.platforms.cpu.library import compiler
from mmserve.model_backend.platforms.reference import TorchPlatform
from mmserve.runtime.errors import StartupError
from tests.fakes.formats.gguf_files import Tensor, gguf_of
from tests.fakes.formats.gguf_formats import BLOCK_FORMATS
from tests.fakes.models.checkpoints import make_llama, make_text
from tests.fakes.ranks.engine import make_runner
from tests.fakes.ranks.ranks_in_threads import RanksInThreads
from tests.unit.model_backend.platforms.cpu.linear.test_checkpoint_linear import expected, written

pytestmark = pytest.mark.skipif(
    not compiler.compilers(), reason="no C++ compiler on this machine, so no quantized weights either"
)
SHAPE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 32, "initializer_range": 0.05}


def mixed(name: str) -> str:
    """As Q4_K_M: values and the output of the MLP have more bits, and so has the head."""
    if name in ("output.weight", "token_embd.weight"):
        return "Q6_K"
    return "Q6_K" if "attn_v" in name or "ffn_down" in name else "Q4_K"


def layers_in(kind: str, others: str = "F32") -> Callable[[str], str]:
    return lambda name: kind if name.startswith("blk.") else others


MIXTURES: dict[str, Callable[[str], str]] = {
    **{kind: layers_in(kind) for kind in BLOCK_FORMATS},
    **{f"all {kind}": layers_in(kind, kind) for kind in ("Q8_0", "Q5_0", "Q4_K")},
    "like Q4_K_M": mixed,
    "F16": layers_in("F16", "F16"),
    "BF16": layers_in("BF16", "BF16"),
    "Q8_0 with F16": layers_in("Q8_0", "F16"),
}


def read(directory: Path, kind_of: Callable[[str], str], tmp_path: Path, **more: Any) -> Path:
    """The checkpoint through a GGUF file. The numbers it stands for are in ``tmp_path / "plain"``."""
    gguf_of(directory, tmp_path / "tiny.gguf", kind_of, tmp_path / "plain", **more)
    return directory_of(tmp_path / "tiny.gguf", tmp_path)


@pytest.mark.parametrize("name", MIXTURES)
def test_tokens_equal_transformers_with_the_dequantized_weights(tmp_path: Path, name: str) -> None:
    """The vocabulary is no whole number of the kernels' panels."""
    made = read(make_llama(tmp_path / "hf", **SHAPE), MIXTURES[name], tmp_path)
    assert written(make_runner(made)) == expected(tmp_path / "plain")


@pytest.mark.parametrize("kind", ["Q8_0", "Q6_K", "F16"])
def test_a_file_without_a_head_of_its_own_uses_the_embedding(tmp_path: Path, kind: str) -> None:
    directory = make_llama(tmp_path / "hf", tie_word_embeddings=True, **SHAPE)
    made = read(directory, layers_in("Q4_K", kind), tmp_path)
    assert load(made).text.tie_embeddings
    assert written(make_runner(made)) == expected(tmp_path / "plain")


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "gemma3_text", "ministral3"])
def test_other_families(tmp_path: Path, family: str) -> None:
    directory = make_text(tmp_path / "hf", family, **SHAPE)
    if family == "gemma3_text":  # GGUF knows the published models: one layer of six has no window, and their scale
        config = json.loads((directory / "config.json").read_text())
        layers = ["sliding_attention"] * 3
        config |= {"layer_types": layers, "query_pre_attn_scalar": SHAPE["head_dim"]}
        (directory / "config.json").write_text(json.dumps(config))
    made = read(directory, mixed, tmp_path)
    assert written(make_runner(made)) == expected(tmp_path / "plain")


def test_divisors_of_the_rope_are_those_of_llama3(tmp_path: Path) -> None:
    factors = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    rope = {"rope_type": "llama3", "rope_theta": 1e4, **factors}
    directory = make_llama(tmp_path / "hf", seed=3, rope_parameters=rope, **SHAPE)  # no two tokens are nearly as likely
    # As converters write them: how much slower a pair turns.
    pairs = torch.arange(0, 32, 2) / 32
    lengths = 2 * torch.pi * 1e4**pairs
    smooth = ((64 / lengths - 1) / (4 - 1)).clamp(0, 1)
    divisors = 1 / ((1 - smooth) / 8 + smooth)
    assert divisors.unique().numel() > 1
    tensor = Tensor("F32", (16,), struct.pack("<16f", *divisors.tolist()))
    made = read(directory, layers_in("Q8_0"), tmp_path, extra={"rope_freqs.weight": tensor})
    assert written(make_runner(made)) == expected(tmp_path / "plain")


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", "Q6_K"])
def test_two_ranks_divide_matrices_by_outputs_and_by_inputs(tmp_path: Path, kind: str) -> None:
    directory = make_llama(tmp_path / "hf", **(SHAPE | {"num_attention_heads": 16, "num_key_value_heads": 8}))
    made = read(directory, layers_in(kind, "Q8_0"), tmp_path)
    with closing(RanksInThreads(made)) as ranks:
        assert written(ranks) == expected(tmp_path / "plain")


def test_blocks_that_ranks_cannot_divide_are_refused(tmp_path: Path) -> None:
    directory = make_llama(tmp_path / "hf", **(SHAPE | {"intermediate_size": 256}))
    made = read(directory, layers_in("Q4_K"), tmp_path)
    with pytest.raises(StartupError, match=r"o_proj is stored in blocks of 256 inputs, which ranks must not divide"):
        RanksInThreads(made)


def test_outputs_that_the_kernels_cannot_divide_are_refused(tmp_path: Path) -> None:
    directory = make_llama(tmp_path / "hf", **(SHAPE | {"head_dim": 8, "num_key_value_heads": 1, "hidden_size": 64}))
    with pytest.raises(StartupError, match=r"k_proj has 8 outputs on a rank; of a GGUF file multiples of 16"):
        make_runner(read(directory, layers_in("Q8_0"), tmp_path))


def test_a_fused_layer_of_which_a_part_is_not_in_blocks_is_refused(tmp_path: Path) -> None:
    directory = make_llama(tmp_path / "hf", **SHAPE)
    made = read(directory, lambda name: "F16" if "attn_q" in name else "Q8_0", tmp_path)
    with pytest.raises(StartupError, match="some are quantised and some not"):
        make_runner(made)


def test_a_tensor_that_the_model_does_not_have_is_refused_by_name(tmp_path: Path) -> None:
    extra = {"blk.0.attn_sinks.weight": Tensor("F32", (8,), bytes(32))}
    made = read(make_llama(tmp_path / "hf", **SHAPE), layers_in("Q8_0"), tmp_path, extra=extra)
    with pytest.raises(StartupError, match=r"unexpected tensor blk\.0\.attn_sinks\.weight"):
        make_runner(made)


def test_a_scale_that_is_not_finite_is_refused_with_the_layer(tmp_path: Path) -> None:
    directory = make_llama(tmp_path / "hf", **SHAPE)
    made = read(directory, layers_in("Q8_0"), tmp_path)
    entries = {entry.name: entry for entry in read_table(made / "model.gguf")}
    with (tmp_path / "tiny.gguf").open("r+b") as file:
        file.seek(entries["model.layers.1.mlp.down_proj.weight"].starts[0])
        file.write(b"\x00\x7c")
    with pytest.raises(StartupError, match=r"layers\.1\.mlp\.down_proj: the scale of a block is not finite"):
        make_runner(made)


def test_without_kernels_blocks_are_refused(tmp_path: Path) -> None:
    made = read(make_llama(tmp_path / "hf", **SHAPE), layers_in("F32", "Q8_0"), tmp_path)
    with pytest.raises(StartupError, match=r"GGUF .* needs a CPU and the C\+\+ kernels"):
        make_runner(made, platform=TorchPlatform(torch.device("cpu"), torch.float32))
