"""Decode steps of models whose positions have three axes, and of mixtures of experts, are captured as others are."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from benchmarks.checkpoints.tiny import TINY
from benchmarks.gpu.models.greedy import Answer, Prompt, answers
from benchmarks.gpu.steps.same_tokens import _picture_prompt, _text_prompt
from mmserve.checkpoint.load import load
from mmserve.messages.sampling import SamplingParams
from mmserve.model_backend.platforms.reference import TorchPlatform
from tests.fakes.devices.graph_capture import RecordedGraphs

NUM_TOKENS = 5
GREEDY = SamplingParams(max_tokens=1000, temperature=0.0, logprobs=1)


def prompts(directory: Path) -> list[Prompt]:
    spec, rng = load(directory), random.Random(3)
    made = [_text_prompt(rng, 5)]
    return made if spec.vision is None else [*made, _picture_prompt(rng, spec)]


def answered(directory: Path, asked: list[Prompt], platform: TorchPlatform) -> list[Answer]:
    return answers(directory, platform, asked, NUM_TOKENS, 1000, GREEDY)


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_moe", "paddleocr_vl"])
def test_all_decode_steps_are_replayed_with_the_tokens_of_eager_ones(family: str, tmp_path: Path) -> None:
    directory = TINY[family](tmp_path / family)
    asked, graphs = prompts(directory), RecordedGraphs()
    expected = answered(directory, asked, TorchPlatform(torch.device("cpu"), torch.float32))
    found = answered(directory, asked, graphs)
    assert [answer.tokens for answer in found] == [answer.tokens for answer in expected]
    assert graphs.capture.num_replays == NUM_TOKENS - 1, "all but the prompts' step"
