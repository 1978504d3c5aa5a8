"""Quantized vision-language checkpoints behind the whole server get the texts of transformers with the same numbers."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from benchmarks.load.server import serve
from tests.e2e.picture_chats import CHUNKS, QUESTIONS, ask_all, expected
from tests.e2e.stack import LITTLE_MEMORY, Stack
from tests.fakes.quantized_checkpoints import awq, fp8, quantize_checkpoint
from tests.fakes.qwen_vl import make_qwen_vl, processed_qwen_vl

pytestmark = pytest.mark.families
FORMATS = {"awq": awq(), "fp8": fp8((128, 128))}


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
