"""Models that transformers' modules compute write the greedy tokens of ``generate``, however their texts are cut."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from mmserve.messages.sampling import SamplingParams
from mmserve.model_backend.models.generic.decoder import GenericDecoder
from mmserve.model_backend.models.generic.describe import describe
from mmserve.model_backend.platforms.reference import TorchPlatform
from mmserve.model_backend.worker.model_runner import ModelRunner
from tests.fakes.models.checkpoints import VOCAB, make_text
from tests.fakes.ranks.engine import BLOCK_TOKENS, Driver, make_runner

FAMILIES = ["gpt_neox", "granite", "cohere2"]
Runners = Callable[[str], tuple[Path, ModelRunner]]


@pytest.fixture(scope="module")
def runners(tmp_path_factory: pytest.TempPathFactory) -> Runners:
    """One runner a family for all tests, with what earlier ones have left in its KV cache. Heads of 8 and of 16."""

    def make(family: str) -> tuple[Path, ModelRunner]:
        changes = {"hidden_size": 128} if family == "granite" else {}
        directory = make_text(tmp_path_factory.mktemp(family), family, **changes)
        return directory, make_runner(directory, model=describe(directory))

    return lru_cache(make)


def prompts(*lengths: int) -> list[list[int]]:
    draw = random.Random(7)
    return [[draw.randrange(4, VOCAB) for _ in range(length)] for length in lengths]


def expected(directory: Path, texts: Sequence[list[int]], num_tokens: int) -> list[list[int]]:
    return [_generated(directory, tuple(text), num_tokens) for text in texts]


@cache
def _generated(directory: Path, prompt: tuple[int, ...], num_tokens: int) -> list[int]:
    model = _model(directory)
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    out = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=num_tokens, eos_token_id=-1)
    return out[0, len(prompt) :].tolist()


@cache
def _model(directory: Path) -> transformers.PreTrainedModel:
    return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)


@pytest.mark.parametrize("chunk", [1000, 7])
@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_in_chunks(runners: Runners, family: str, chunk: int) -> None:
    directory, runner = runners(family)
    assert isinstance(runner._model, GenericDecoder)
    driver, texts = Driver(runner, chunk=chunk), prompts(1, 17, 70)
    sequences = [driver.add(slot, text) for slot, text in enumerate(texts)]
    driver.run(12)
    assert [s.output[:12] for s in sequences] == expected(directory, texts, 12)


@pytest.mark.parametrize("family", FAMILIES)
def test_prefix_hit_and_preemption(runners: Runners, family: str) -> None:
    directory, runner = runners(family)
    driver = Driver(runner, chunk=30)
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


def test_reference_platform_and_sharded_weights(tmp_path: Path, runners: Runners) -> None:
    directory, _ = runners("cohere2")
    transformers.AutoModelForCausalLM.from_pretrained(directory).save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    platform = TorchPlatform(torch.device("cpu"), torch.float32)
    driver = Driver(make_runner(tmp_path, platform=platform, model=describe(tmp_path)), chunk=20)
    texts = prompts(50)
    sequence = driver.add(0, texts[0])
    driver.run(6)
    assert [sequence.output[:6]] == expected(directory, texts, 6)


def test_logprobs_and_embeddings(runners: Runners) -> None:
    """The scale of Granite's logits changes log-probabilities, though not greedy tokens."""
    directory, runner = runners("granite")
    (text,) = prompts(20)
    driver = Driver(runner, chunk=12)
    scored = driver.add(0, text, sampling=SamplingParams(max_tokens=1, temperature=0.0, logprobs=0))
    driver.add(1, text, sampling=SamplingParams(max_tokens=0), pooling=True)
    embeddings = [dict(driver.step().embeddings) for _ in range(2)][-1]
    with torch.inference_mode():
        outputs = _model(directory)(torch.tensor([text]), output_hidden_states=True)
    wanted = outputs.logits[0, -1].log_softmax(-1)
    (token, logprob), *_ = scored.logprobs[0]
    assert token == int(wanted.argmax())
    assert logprob == pytest.approx(float(wanted.max()), abs=1e-4)
    pooled = np.frombuffer(embeddings[1], dtype=np.float32)
    assert pooled == pytest.approx(outputs.hidden_states[-1][0, -1].numpy(), abs=1e-3)
