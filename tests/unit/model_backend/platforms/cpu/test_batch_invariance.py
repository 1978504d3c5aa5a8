"""What a sequence computes depends on nothing but itself: not on its batch, its chunks, nor on being resumed.

On every instruction set of this CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmserve.config.config import Config
from mmserve.config.fields import Dtype, Quantization
from mmserve.messages.sampling import SamplingParams
from mmserve.model_backend.platforms.cpu.library import levels
from mmserve.model_backend.platforms.cpu.platform import CpuPlatform
from mmserve.model_backend.platforms.cpu.threads import set_threads
from mmserve.model_backend.platforms.device import DTYPES
from tests.fakes.models.checkpoints import make_llama
from tests.fakes.ranks.engine import Driver, make_runner
from tests.unit.model_backend.platforms.cpu.kernels import kernels, needs_compiler

pytestmark = needs_compiler
LOGPROBS = SamplingParams(max_tokens=99, temperature=0.0, logprobs=4)
ANSWER_TOKENS = 5


class Mode(NamedTuple):
    dtype: str
    kv_dtype: Dtype = "auto"
    quantization: Quantization = "none"


EXACT, ROUNDED, SHORT_KV = Mode("float32"), Mode("bfloat16"), Mode("float32", "bfloat16")
INT8, INT4 = Mode("bfloat16", quantization="int8"), Mode("bfloat16", quantization="int4")
LEVELS = [level.name for level in levels.of_this_cpu()]
Answer = tuple[list[int], list[list[tuple[int, float]]]]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("llama"), head_dim=16)


def answers(
    directory: Path, mode: Mode, prompts: Sequence[Sequence[int]], chunk: int, answered: int = 0, level: str = "auto"
) -> list[Answer]:
    """Tokens and log-probabilities. ``answered``: tokens of each prompt that belong to its answer, which is resumed."""
    platform = CpuPlatform(DTYPES[mode.dtype], kernel_level=level)  # type: ignore[arg-type]
    assert platform.kernels is not None
    set_threads(platform.kernels, 3)
    config = Config(model=str(directory), max_num_seqs=8, kv_cache_dtype=mode.kv_dtype, quantization=mode.quantization)
    runner = make_runner(directory, platform=platform, dtype=mode.dtype, config=config)
    driver = Driver(runner, chunk=chunk)
    running = [
        driver.add(slot, prompt, num_prompt=len(prompt) - answered, sampling=LOGPROBS)
        for slot, prompt in enumerate(prompts)
    ]
    driver.run(ANSWER_TOKENS)
    return [(each.output[answered:ANSWER_TOKENS], each.logprobs[: ANSWER_TOKENS - answered]) for each in running]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("mode", [EXACT, ROUNDED, SHORT_KV, INT8, INT4], ids=str)
@settings(max_examples=5)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=5), chunk=st.integers(1, 64), resumed=st.integers(1, 4)
)
def test_answers_are_the_same_alone_in_a_batch_in_chunks_and_resumed(
    directory: Path, mode: Mode, level: str, lengths: list[int], chunk: int, resumed: int
) -> None:
    prompts = [[3 + (7 * i + 5 * k) % 90 for k in range(length)] for i, length in enumerate(lengths)]
    together = answers(directory, mode, prompts, 1000, level=level)
    assert answers(directory, mode, prompts, chunk, level=level) == together
    tokens, logprobs = together[0]
    assert answers(directory, mode, prompts[:1], 1000, level=level) == together[:1]
    again = answers(directory, mode, [prompts[0] + tokens[:resumed]], chunk, answered=resumed, level=level)
    assert again == [(tokens[resumed:], logprobs[resumed:])]


@pytest.mark.parametrize("mode", [EXACT, ROUNDED, SHORT_KV, INT8, INT4], ids=str)
def test_answers_are_the_same_on_every_level_without_tiles(directory: Path, mode: Mode) -> None:
    """Tiles sum products of bfloat16 in another order."""
    prompts = [[3 + (7 * i + 5 * k) % 90 for k in range(length)] for i, length in enumerate((70, 33, 1))]
    first, *others = (answers(directory, mode, prompts, 25, level=level) for level in LEVELS if level != "amx")
    assert all(other == first for other in others)


def test_bfloat16_rounds_the_inputs_of_linear_layers_and_the_kv_cache_alone(directory: Path) -> None:
    platform = CpuPlatform(DTYPES["bfloat16"])
    assert (platform.dtype, platform.kernels) == (DTYPES["float32"], kernels())
    modes = (ROUNDED, Mode("bfloat16", "float32"), SHORT_KV, EXACT)
    logprobs = [answers(directory, mode, [[5, 9, 40]], 1000)[0][1] for mode in modes]
    for index, rounded in enumerate(logprobs[:-1]):
        assert rounded not in logprobs[index + 1 :]
        for found, expected in zip(rounded[0], logprobs[-1][0], strict=True):
            assert found[1] == pytest.approx(expected[1], abs=0.05)
