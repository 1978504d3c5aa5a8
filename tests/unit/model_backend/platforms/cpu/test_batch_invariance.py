"""What a sequence computes depends on nothing but itself: not on its batch, its chunks, nor on being resumed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmserve.config.config import Config
from mmserve.config.fields import Dtype
from mmserve.messages.sampling import SamplingParams
from mmserve.model_backend.platforms.cpu.platform import CpuPlatform
from mmserve.model_backend.platforms.device import DTYPES, platform_for
from tests.fakes.checkpoints import make_llama
from tests.fakes.engine import Driver, make_runner
from tests.unit.model_backend.platforms.cpu.kernels import kernels, needs_compiler

pytestmark = needs_compiler
LOGPROBS = SamplingParams(max_tokens=99, temperature=0.0, logprobs=4)
ANSWER_TOKENS = 5


class Mode(NamedTuple):
    dtype: str
    kv_dtype: Dtype = "auto"


EXACT, ROUNDED, SHORT_KV = Mode("float32"), Mode("bfloat16"), Mode("float32", "bfloat16")
Answer = tuple[list[int], list[list[tuple[int, float]]]]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("llama"), head_dim=16)


def answers(
    directory: Path, mode: Mode, prompts: Sequence[Sequence[int]], chunk: int, answered: int = 0
) -> list[Answer]:
    """Tokens and log-probabilities. ``answered``: tokens of each prompt that belong to its answer, which is resumed."""
    kernels()
    config = Config(model=str(directory), max_num_seqs=8, kv_cache_dtype=mode.kv_dtype)
    runner = make_runner(directory, dtype=mode.dtype, config=config)
    driver = Driver(runner, chunk=chunk)
    running = [
        driver.add(slot, prompt, num_prompt=len(prompt) - answered, sampling=LOGPROBS)
        for slot, prompt in enumerate(prompts)
    ]
    driver.run(ANSWER_TOKENS)
    return [(each.output[answered:ANSWER_TOKENS], each.logprobs[: ANSWER_TOKENS - answered]) for each in running]


@pytest.mark.parametrize("mode", [EXACT, ROUNDED, SHORT_KV], ids=str)
@settings(max_examples=12)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=5), chunk=st.integers(1, 64), resumed=st.integers(1, 4)
)
def test_answers_are_the_same_alone_in_a_batch_in_chunks_and_resumed(
    directory: Path, mode: Mode, lengths: list[int], chunk: int, resumed: int
) -> None:
    prompts = [[3 + (7 * i + 5 * k) % 90 for k in range(length)] for i, length in enumerate(lengths)]
    together = answers(directory, mode, prompts, 1000)
    assert answers(directory, mode, prompts, chunk) == together
    tokens, logprobs = together[0]
    assert answers(directory, mode, prompts[:1], 1000) == together[:1]
    again = answers(directory, mode, [prompts[0] + tokens[:resumed]], chunk, answered=resumed)
    assert again == [(tokens[resumed:], logprobs[resumed:])]


def test_bfloat16_rounds_the_inputs_of_linear_layers_and_the_kv_cache_alone(directory: Path) -> None:
    platform = platform_for("cpu", "bfloat16")
    assert isinstance(platform, CpuPlatform)
    assert (platform.dtype, platform.kernels) == (DTYPES["float32"], kernels())
    modes = (ROUNDED, Mode("bfloat16", "float32"), SHORT_KV, EXACT)
    logprobs = [answers(directory, mode, [[5, 9, 40]], 1000)[0][1] for mode in modes]
    for index, rounded in enumerate(logprobs[:-1]):
        assert rounded not in logprobs[index + 1 :]
        for found, expected in zip(rounded[0], logprobs[-1][0], strict=True):
            assert found[1] == pytest.approx(expected[1], abs=0.05)
