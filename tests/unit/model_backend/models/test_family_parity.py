"""Every text family writes the greedy tokens of transformers in float32, however its texts are computed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from msgspec.structs import replace

from mmserve.checkpoint.config.rope_config import for_context
from mmserve.checkpoint.load import load
from mmserve.checkpoint.spec import LayerSpec, ModelSpec, Rope
from mmserve.model_backend.platforms.reference import TorchPlatform
from mmserve.model_backend.worker.model_runner import ModelRunner
from tests.fakes.models.checkpoints import TEXT_FAMILIES, VOCAB, make_text
from tests.fakes.ranks.engine import BLOCK_TOKENS, Driver, make_runner
from tests.fakes.ranks.ranks_in_threads import RanksInThreads

QWEN_WINDOW = {"use_sliding_window": True, "sliding_window": 19, "max_window_layers": 1}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}
DEEPSEEK = {"mscale": 1.0, "mscale_all_dim": 0.7, "beta_fast": 16, "beta_slow": 2, "truncate": False}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("mistral", {}),
    "mistral, no window": ("mistral", {"sliding_window": None}),
    "mistral, narrow heads": ("mistral", {"head_dim": 8}),
    "ministral": ("ministral", {}),
    "ministral3": ("ministral3", {}),
    "qwen2": ("qwen2", {"hidden_size": 128}),
    "qwen2, tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2, yarn": ("qwen2", {"hidden_size": 128, "rope_parameters": YARN}),
    "qwen3, yarn as DeepSeek writes it": ("qwen3", {"rope_parameters": YARN | DEEPSEEK}),
    "qwen2, dynamic": (
        "qwen2",
        {"hidden_size": 128, "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e6, "factor": 2.0}},
    ),
    "qwen2, window": ("qwen2", {"hidden_size": 128, **QWEN_WINDOW}),
    "qwen3": ("qwen3", {}),
    "qwen3, tied, biased": ("qwen3", {"tie_word_embeddings": True, "attention_bias": True}),
    "qwen3, narrow heads": ("qwen3", {"head_dim": 12}),
    "smollm3": ("smollm3", {"hidden_size": 128}),
    "qwen3_moe": ("qwen3_moe", {}),
    "qwen3 moe, router's weights, window": (
        "qwen3_moe",
        {"norm_topk_prob": False, "use_sliding_window": True, "sliding_window": 19, "num_experts_per_tok": 3},
    ),
    "phi3": ("phi3", {}),
    "phi3, whole heads turn, window": ("phi3", {"rope_parameters": None, "sliding_window": 19}),
    "ernie4_5": ("ernie4_5", {}),
    "ernie4_5, biased": ("ernie4_5", {"use_bias": True, "tie_word_embeddings": True, "head_dim": 12}),
    "gemma3_text": ("gemma3_text", {}),
    "gemma3, narrow heads, tied": ("gemma3_text", {"head_dim": 12, "tie_word_embeddings": True}),
}
Checkpoints = Callable[[str], Path]
NewRunner = Callable[..., ModelRunner]


@pytest.fixture(scope="module", params=["cpu", "reference"])
def new_runner(request: pytest.FixtureRequest) -> NewRunner:
    reference = TorchPlatform(torch.device("cpu"), torch.float32)
    return partial(make_runner, platform=reference) if request.param == "reference" else make_runner


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    def make(name: str) -> Path:
        family, changes = MODELS[name]
        return make_text(tmp_path_factory.mktemp(family), family, **changes)

    return lru_cache(make)


def prompts(*lengths: int) -> list[list[int]]:
    draw = random.Random(7)
    return [[draw.randrange(4, VOCAB) for _ in range(length)] for length in lengths]


def expected(directory: Path, texts: Sequence[list[int]], num_tokens: int) -> list[list[int]]:
    return [_generated(directory, tuple(text), num_tokens) for text in texts]


@cache
def _generated(directory: Path, prompt: tuple[int, ...], num_tokens: int) -> list[int]:
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    out = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=num_tokens, eos_token_id=-1)
    return out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("chunk", [1000, 20, 7, 1])
@pytest.mark.parametrize("name", list(MODELS))
def test_prompts_in_chunks(new_runner: NewRunner, checkpoints: Checkpoints, name: str, chunk: int) -> None:
    directory, texts = checkpoints(name), prompts(1, 17, 70, 140)
    driver = Driver(new_runner(directory), chunk=chunk)
    sequences = [driver.add(slot, text) for slot, text in enumerate(texts)]
    driver.run(16)
    assert [s.output[:16] for s in sequences] == expected(directory, texts, 16)


def test_longrope_beyond_the_original_context(new_runner: NewRunner, tmp_path: Path) -> None:
    """For texts that are longer than it from the first token on: transformers computes shorter ones otherwise."""
    directory, texts = make_text(tmp_path, "phi3", original_max_position_embeddings=64), prompts(70, 140)
    driver = Driver(new_runner(directory), chunk=20)
    sequences = [driver.add(slot, text) for slot, text in enumerate(texts)]
    driver.run(16)
    assert [s.output[:16] for s in sequences] == expected(directory, texts, 16)


@pytest.mark.parametrize("name", TEXT_FAMILIES)
def test_prefix_hit_and_preemption(new_runner: NewRunner, checkpoints: Checkpoints, name: str) -> None:
    directory = checkpoints(name)
    driver = Driver(new_runner(directory), chunk=30)
    shared, tail, other_tail = prompts(41, 12, 7)
    first = driver.add(0, shared + tail)
    while len(first.output) < 5:
        driver.step()
    num_whole, num_copied = divmod(len(shared), BLOCK_TOKENS)
    blocks, copied = tuple(first.blocks[:num_whole]), (first.blocks[num_whole], num_copied)
    hit = driver.add(1, shared + other_tail, shared=blocks, copied=copied)
    driver.step()
    driver.drop(first)
    driver.step()
    resumed = driver.add(2, first.tokens, num_prompt=first.num_prompt)
    driver.run(12)
    texts = [shared + tail, shared + other_tail]
    assert [resumed.output[:12], hit.output[:12]] == expected(directory, texts, 12)


@pytest.mark.parametrize(("size", "kv_heads"), [(2, 4), (2, 1), (4, 2)], ids=str)
@pytest.mark.parametrize("family", ["llama", *TEXT_FAMILIES])
def test_ranks_with_kv_heads_replicated(tmp_path: Path, family: str, size: int, kv_heads: int) -> None:
    directory = make_text(tmp_path, family, num_key_value_heads=kv_heads)
    ranks = RanksInThreads(directory, size=size)
    try:
        driver, texts = Driver(ranks, chunk=20), prompts(5, 60)
        sequences = [driver.add(slot, text) for slot, text in enumerate(texts)]
        driver.run(8)
    finally:
        ranks.close()
    assert [s.output[:8] for s in sequences] == expected(directory, texts, 8)


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_sharded_checkpoint_with_tied_head(tmp_path: Path, family: str) -> None:
    directory = make_text(tmp_path / "whole", family, tie_word_embeddings=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory)
    model.save_pretrained(tmp_path / "parts", max_shard_size="60KB")
    assert len(list((tmp_path / "parts").glob("model-*.safetensors"))) > 1
    texts = prompts(12)
    driver = Driver(make_runner(tmp_path / "parts"))
    sequence = driver.add(0, texts[0])
    driver.run(6)
    assert [sequence.output] == expected(directory, texts, 6)


def test_config_as_published_before_transformers_5(tmp_path: Path) -> None:
    """``rope_theta`` at the top, ``torch_dtype``, no ``layer_types``: Qwen2.5's file."""
    rope = {"rope_type": "default", "rope_theta": 5e5}
    directory = make_text(tmp_path / "new", "qwen2", rope_parameters=rope, tie_word_embeddings=True)
    old = make_text(tmp_path / "old", "qwen2", rope_parameters=rope, tie_word_embeddings=True)
    config = json.loads((old / "config.json").read_text())
    for name in ("rope_parameters", "layer_types", "dtype"):
        config.pop(name, None)
    config |= {"rope_theta": 5e5, "torch_dtype": "float32", "use_sliding_window": False, "max_window_layers": 2}
    (old / "config.json").write_text(json.dumps(config))
    texts = prompts(30)
    driver = Driver(make_runner(old))
    sequence = driver.add(0, texts[0])
    driver.run(8)
    assert [sequence.output] == expected(directory, texts, 8)


def with_layers(model: ModelSpec, change: Callable[[LayerSpec], LayerSpec]) -> ModelSpec:
    return with_text(model, layers=tuple(map(change, model.text.layers)))


def with_text(model: ModelSpec, **changes: Any) -> ModelSpec:
    return replace(model, text=replace(model.text, **changes))


def of_long_contexts(model: ModelSpec) -> tuple[LayerSpec, ...]:
    return for_context(model.text, 513).layers


def with_moe(model: ModelSpec, **changes: Any) -> ModelSpec:
    assert model.text.moe is not None
    return with_text(model, moe=replace(model.text.moe, **changes))


def with_rope(model: ModelSpec, **changes: Any) -> ModelSpec:
    return with_layers(model, lambda layer: replace(layer, rope=replace(layer.rope or Rope(), **changes)))


MUTATIONS: dict[str, tuple[str, Callable[[ModelSpec], ModelSpec]]] = {
    "a window of one more": ("mistral", lambda model: with_layers(model, lambda _: LayerSpec(window=22))),
    "a window of one less": ("mistral", lambda model: with_layers(model, lambda _: LayerSpec(window=20))),
    "the window in the other layer": (
        "ministral",
        lambda model: replace(model, text=replace(model.text, layers=model.text.layers[::-1])),
    ),
    "rotation in all layers": ("smollm3", lambda model: with_rope(model)),
    "another theta": ("qwen2", lambda model: with_rope(model, theta=9e5)),
    "yarn's amplitude forgotten": ("qwen2, yarn", lambda model: with_rope(model, amplitude=1.0)),
    "queries that do not grow": ("ministral3", lambda model: with_rope(model, query_growth=0.0)),
    "a part of each head": ("phi3", lambda model: with_rope(model, fraction=0.5, divisors=(1.0,) * 4)),
    "the divisors of long contexts": ("phi3", lambda model: with_text(model, layers=of_long_contexts(model))),
    "pairs of the two halves": ("ernie4_5", lambda model: with_rope(model, adjacent=False)),
    "one rope for all layers": ("gemma3_text", lambda model: with_rope(model, theta=1e6, kind="linear", factor=8.0)),
    "the usual attention scale": ("gemma3_text", lambda model: with_text(model, attention_scale=None)),
    "embeddings as they are stored": ("gemma3_text", lambda model: with_text(model, embedding_scale=None)),
    "norms without an offset": ("gemma3_text", lambda model: with_text(model, norm_offset=0.0)),
    "silu": ("gemma3_text", lambda model: with_text(model, activation="silu")),
    "probabilities as weights of experts": ("qwen3_moe", lambda model: with_moe(model, renormalize=False)),
    "one expert less": ("qwen3_moe", lambda model: with_moe(model, top_k=1)),
}


@pytest.mark.parametrize("mutation", list(MUTATIONS))
def test_the_texts_show_a_wrong_option(new_runner: NewRunner, checkpoints: Checkpoints, mutation: str) -> None:
    """Otherwise the tests above could not see it either."""
    name, mutate = MUTATIONS[mutation]
    directory, texts = checkpoints(name), prompts(17, 70, 140)
    driver = Driver(new_runner(directory, model=mutate(load(directory))))
    sequences = [driver.add(slot, text) for slot, text in enumerate(texts)]
    driver.run(16)
    assert [s.output[:16] for s in sequences] != expected(directory, texts, 16)


@pytest.mark.parametrize(
    ("name", "parameter"), [("qwen2", "qkv.bias"), ("qwen3", "q_norm.weight"), ("qwen3", "k_norm.weight")]
)
def test_the_texts_show_a_wrong_parameter(
    new_runner: NewRunner, checkpoints: Checkpoints, name: str, parameter: str
) -> None:
    directory, texts = checkpoints(name), prompts(17, 70, 140)
    runner = new_runner(directory)
    attention = runner._model.layers[1].attention  # type: ignore[attr-defined]
    part, field = parameter.split(".")
    values = getattr(getattr(attention, part), field)
    values.copy_(values.flip(0))
    driver = Driver(runner)
    sequences = [driver.add(slot, text) for slot, text in enumerate(texts)]
    driver.run(16)
    assert [s.output[:16] for s in sequences] != expected(directory, texts, 16)
