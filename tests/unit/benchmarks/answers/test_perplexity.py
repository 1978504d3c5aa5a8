"""The probabilities from which ``quality`` and ``formats`` of ``benchmarks.answers`` compute perplexities."""

from __future__ import annotations

import pytest
import torch
from transformers import LlavaForConditionalGeneration

from benchmarks.answers.engine import Engine
from mmserve.checkpoint.locate import locate
from mmserve.config.config import Config

TEXT = [5, 300, 41, 7, 7, 612, 90, 12]


def test_probabilities_of_decode_steps_are_those_of_transformers() -> None:
    """Whichever way the steps are computed: layer by layer, or in one call of the kernels."""
    found = Engine(Config(model="llava", dtype="float32", max_model_len=64, max_num_seqs=2)).read([TEXT, TEXT[::-1]])
    model = LlavaForConditionalGeneration.from_pretrained(locate("llava"), dtype=torch.float32)
    with torch.inference_mode():
        logits = model(torch.tensor([TEXT])).logits[0]
    expected = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(TEXT[1:]), reduction="none")
    assert found.nll == pytest.approx(expected.tolist(), abs=1e-3)
