"""The text model's head start: what it can answer before any training."""

import numpy as np
import pytest
import torch

pytest.importorskip("tokenizers")

from training import labels, prior, rows
from training.language import logits_of, oracle_tokens, rows_of
from training.models import Text
from training.tokens import Coder


@torch.no_grad()
def test_the_side_of_a_thing_can_be_read_before_any_training(coder: Coder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rows.KINDS, "where", 3000.0)
    torch.manual_seed(2)
    text = Text()
    prior.plant(text, coder)
    batch = rows_of(930_000_000, 24, coder)
    logits, targets, places = logits_of(text, text, batch, oracle_tokens(batch, torch.from_numpy(labels.basis()), None))
    left, right = (coder.ids(f"top {side}")[1] for side in ("left", "right"))
    said = np.isin(targets, (left, right)) & np.isin(
        places, [last - 1 for kind, _, last in batch.answers if kind == "where"]
    )
    found = (logits[said, right] > logits[said, left]) == (targets[said] == right)
    assert said.sum() > 30
    assert found.float().mean() > 0.75, "chance is a half"
