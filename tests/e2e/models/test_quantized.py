"""Vision-language models with quantized weights behind the whole server: transformers' texts with the same numbers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

import pytest
import torch

from benchmarks.load.server import serve
from tests.e2e.models.picture_chats import CHUNKS, GREEDY, QUESTIONS, THEIR_GREEDY, ask_all, expected
from tests.e2e.stack import LITTLE_MEMORY, Stack
from tests.fakes.formats.quantized import round_text
from tests.fakes.formats.quantized_checkpoints import awq, fp8, quantize_checkpoint
from tests.fakes.models.checkpoints import EOS
from tests.fakes.models.picture_families import PICTURE_FAMILIES, QUANTIZABLE
from tests.fakes.models.qwen_vl import make_qwen_vl, processed_qwen_vl

pytestmark = pytest.mark.families
FORMATS = {"awq": awq(), "fp8": fp8((128, 128))}
ROUNDED: tuple[tuple[str, Literal["int8", "int4"]], ...] = (
    ("llava", "int8"),
    ("idefics3", "int8"),
    ("qwen2_5_vl", "int4"),
    ("qwen3_vl_moe", "int8"),
    ("gemma3", "int4"),
)
"""A family for each kind: plain, tiles, three axes of positions, experts and rows for several layers, two kinds of
layers. ``tests/unit/model_backend/platforms/cpu/linear/test_quantization.py`` compares the texts of all families."""


def end_at_a_tie(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Scores [1, vocab] with which EOS follows if two other tokens are about equally likely, and never else."""
    allowed = scores.index_fill(1, torch.tensor([EOS]), -torch.inf)
    first, second = allowed[0].topk(2).values
    return allowed if first - second > 1e-3 else -allowed


UNTIL_A_TIE = THEIR_GREEDY | {"logits_processor": [end_at_a_tie], "eos_token_id": EOS}


@pytest.mark.parametrize("name", FORMATS)
def test_questions_about_pictures_are_answered_as_by_transformers(tmp_path: Path, name: str) -> None:
    plain, options = tmp_path / "plain", (*LITTLE_MEMORY, "--served-model-name", "tiny", "--http-workers", "1")
    directory = quantize_checkpoint(make_qwen_vl(tmp_path / "q", "qwen2_5_vl"), FORMATS[name], plain)
    with serve(*options, *CHUNKS, model=str(directory)) as target:
        assert target.pid is not None
        stack = Stack(target.url, target.pid)
        found = ask_all(stack, QUESTIONS)
        stack.check_all_released()
    assert found == expected(plain, QUESTIONS, partial(processed_qwen_vl, family="qwen2_5_vl"))


@pytest.mark.parametrize(("family", "form"), ROUNDED)
def test_weights_that_the_server_rounds(tmp_path: Path, family: str, form: Literal["int8", "int4"]) -> None:
    """Texts are compared as far as no two tokens are about equally likely: the kernels round inputs to 16 bits."""
    directory, asked = QUANTIZABLE[family](tmp_path / "plain"), QUESTIONS[:6]
    options = (*LITTLE_MEMORY, "--served-model-name", "tiny", "--http-workers", "1", "--quantization", form)
    options += ("--dtype", "float32")
    with serve(*options, *CHUNKS, model=str(directory)) as target:
        assert target.pid is not None
        found = ask_all(Stack(target.url, target.pid), asked, GREEDY | {"logit_bias": {EOS: -100}})
    rounded = round_text(directory, tmp_path / "rounded", form)
    processed = PICTURE_FAMILIES[family].processed
    wanted = expected(rounded, asked, processed, UNTIL_A_TIE)
    for answer, sure in zip(found, wanted, strict=True):
        assert answer == sure or (sure.finish_reason == "stop" and answer.text.startswith(sure.text.rstrip("\ufffd")))
    assert [answer.finish_reason for answer in wanted].count("length") > len(asked) / 2
