"""In float32 greedy tokens equal those of transformers, with any batch, chunks, prefix hits and preemptions."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from mmserve.model_backend.platforms.reference import TorchPlatform
from mmserve.model_backend.worker.model_runner import ModelRunner
from tests.fakes.models.checkpoints import VOCAB, make_llama
from tests.fakes.ranks.engine import BLOCK_TOKENS, Driver, Running, make_runner

CONFIGS: dict[str, dict[str, Any]] = {
    "grouped": {},
    "multi-head": {"num_key_value_heads": 8},
    "tied": {"tie_word_embeddings": True},
    "biased": {"attention_bias": True, "mlp_bias": True},
    "wide-heads": {"head_dim": 16},
    "in-panels": {"head_dim": 16, "vocab_size": 272, "tie_word_embeddings": True, "dtype": torch.bfloat16},
    "rope-linear": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
    "rope-llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
            "rope_theta": 10000.0,
        }
    },
}
Checkpoints = Callable[[str], Path]
NewRunner = Callable[..., ModelRunner]


@pytest.fixture(scope="module", params=["cpu", "reference"])
def new_runner(request: pytest.FixtureRequest) -> NewRunner:
    """``make_runner`` on the CPU's platform, then in plain torch: what a GPU runs, and a CPU without a compiler."""
    reference = TorchPlatform(torch.device("cpu"), torch.float32)
    return partial(make_runner, platform=reference) if request.param == "reference" else make_runner


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    return lru_cache(lambda name: make_llama(tmp_path_factory.mktemp(name), **CONFIGS[name]))


def prompts(*lengths: int) -> list[list[int]]:
    draw = random.Random(7)
    return [[draw.randrange(4, VOCAB) for _ in range(length)] for length in lengths]


def expected(directory: Path, prompt: list[int], num_tokens: int) -> list[int]:
    return _generated(directory, tuple(prompt), num_tokens)


@cache
def _generated(directory: Path, prompt: tuple[int, ...], num_tokens: int) -> list[int]:
    model = transformers.LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32)
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=num_tokens, eos_token_id=-1
    )
    return out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("name", list(CONFIGS))
def test_prompts_of_mixed_lengths_computed_in_chunks(
    new_runner: NewRunner, checkpoints: Checkpoints, name: str
) -> None:
    directory = checkpoints(name)
    driver = Driver(new_runner(directory), chunk=20)
    texts = prompts(1, 5, 16, 17, 70)
    sequences = [driver.add(slot, prompt) for slot, prompt in enumerate(texts)]
    driver.run(24)
    assert [s.output[:24] for s in sequences] == [expected(directory, prompt, 24) for prompt in texts]


def test_long_and_short_contexts_decode_together(new_runner: NewRunner, checkpoints: Checkpoints) -> None:
    directory = checkpoints("grouped")
    driver = Driver(new_runner(directory, max_model_len=400))
    texts = prompts(330, 3, 310, 40, 2)
    sequences = [driver.add(slot, prompt) for slot, prompt in enumerate(texts)]
    driver.run(12)
    assert [s.output[:12] for s in sequences] == [expected(directory, prompt, 12) for prompt in texts]


@pytest.mark.parametrize("lengths", [(48, 9, 1), (39, 12, 7)], ids=["of whole blocks", "that ends within a block"])
def test_prefix_cache_hit(new_runner: NewRunner, checkpoints: Checkpoints, lengths: tuple[int, int, int]) -> None:
    directory = checkpoints("grouped")
    driver = Driver(new_runner(directory), chunk=30)
    shared, tail, other_tail = prompts(*lengths)
    first = driver.add(0, shared + tail)
    driver.run(5)
    num_whole, num_copied = divmod(len(shared), BLOCK_TOKENS)
    source = first.blocks[num_whole]
    hits = [
        driver.add(slot, shared + end, shared=tuple(first.blocks[:num_whole]), copied=(source, num_copied))
        for slot, end in ((1, other_tail), (2, tail))
    ]
    driver.run(10)
    assert hits[0].output[:10] == expected(directory, shared + other_tail, 10)
    assert hits[1].output[:10] == expected(directory, shared + tail, 10)
    assert [s.blocks[num_whole] for s in hits].count(source) == 0


def test_preempted_and_resumed(new_runner: NewRunner, checkpoints: Checkpoints) -> None:
    directory = checkpoints("grouped")
    driver = Driver(new_runner(directory), chunk=16)
    texts = prompts(30, 10)
    victim, other = (driver.add(slot, prompt) for slot, prompt in enumerate(texts))
    while len(victim.output) < 6:
        driver.step()
    driver.drop(victim)
    driver.step()
    resumed = driver.add(5, victim.tokens, num_prompt=30)
    driver.run(20)
    assert resumed.output[:20] == expected(directory, texts[0], 20)
    assert other.output[:20] == expected(directory, texts[1], 20)


@pytest.fixture(scope="module")
def scheduled(new_runner: NewRunner, checkpoints: Checkpoints) -> tuple[ModelRunner, list[tuple[list[int], list[int]]]]:
    """A runner shared by all examples, with stale slots and blocks; prompts and their expected tokens."""
    directory = checkpoints("grouped")
    return new_runner(directory), [(prompt, expected(directory, prompt, 8)) for prompt in prompts(3, 16, 37, 65)]


Events = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 3), st.booleans()), min_size=1, max_size=12)


@given(events=Events)
@settings(max_examples=20, deadline=None)
def test_any_schedule(scheduled: tuple[ModelRunner, list[tuple[list[int], list[int]]]], events: Any) -> None:
    """Sequences arrive and are preempted between steps of any chunk size; the tokens stay the same."""
    runner, texts = scheduled
    driver = Driver(runner)
    current: dict[int, Running] = {}
    for chunk, index, preempt in events:
        driver.chunk = chunk
        sequence = current.get(index)
        if sequence is None:
            current[index] = driver.add(index, texts[index][0])
        elif preempt and sequence in driver.running:
            driver.drop(sequence)
            driver.step()
            current[index] = driver.add(index, sequence.tokens, num_prompt=sequence.num_prompt)
        driver.step()
    driver.run(8)
    assert {i: s.output[:8] for i, s in current.items()} == {i: texts[i][1] for i in current}


def test_a_slot_is_reused_in_the_plan_that_frees_it(new_runner: NewRunner, checkpoints: Checkpoints) -> None:
    directory = checkpoints("grouped")
    driver = Driver(new_runner(directory))
    first_text, second_text = prompts(20, 33)
    first = driver.add(0, first_text)
    driver.step()
    driver.drop(first)
    second = driver.add(0, second_text)
    driver.run(8)
    assert second.output == expected(directory, second_text, 8)


def test_sharded_checkpoint_and_warm_up(new_runner: NewRunner, checkpoints: Checkpoints, tmp_path: Path) -> None:
    source = checkpoints("tied")
    transformers.LlamaForCausalLM.from_pretrained(source).save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    runner = new_runner(tmp_path)
    runner.warm_up()
    driver = Driver(runner)
    [text] = prompts(12)
    sequence = driver.add(0, text)
    driver.run(6)
    assert sequence.output == expected(source, text, 6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_stored_head_is_used_although_the_config_ties_it(
    new_runner: NewRunner, tmp_path: Path, dtype: torch.dtype
) -> None:
    """Some fine-tuned checkpoints have one; transformers uses it as well."""
    directory = make_llama(tmp_path, dtype=dtype)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    driver = Driver(new_runner(directory))
    prompt = prompts(9)[0]
    sequence = driver.add(0, prompt)
    driver.run(24)
    assert sequence.output[:24] == expected(directory, prompt, 24)
