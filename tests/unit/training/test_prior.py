"""The text model's head start: what it can answer before any training."""

import numpy as np
import pytest
import torch

pytest.importorskip("tokenizers")

from training import conversations, labels, prior, rows
from training.language import logits_of, oracle_tokens, rows_of
from training.models import Text
from training.tokens import Coder

FIRST_SEEDS = (930_000_000, 940_000_000, 950_000_000)  # of rows; one draw alone scatters by a tenth


@torch.no_grad()
def leaning(coder: Coder, kind: str, words: tuple[str, str]) -> tuple[np.ndarray, np.ndarray]:
    """Of all answers of a kind that end in one of two words: how much more the second is expected, and whether it is
    the right one."""
    torch.manual_seed(2)
    text = Text()
    prior.plant(text, coder)
    basis, found = torch.from_numpy(labels.basis()), []
    one, other = (coder.ids(f"the {word}")[1] for word in words)
    for first in FIRST_SEEDS:
        batch = rows_of(first, 72, coder)
        logits, target, places = logits_of(text, text, batch, oracle_tokens(batch, basis, None))
        ends = [last - 1 for name, _, last in batch.answers if name == kind]
        said = np.isin(target, (one, other)) & np.isin(places, ends)
        found.append(((logits[said, other] - logits[said, one]).numpy(), (target[said] == other).numpy()))
    leans, right = map(np.concatenate, zip(*found, strict=True))
    return leans, right


def test_the_side_of_a_thing_can_be_read_before_any_training(coder: Coder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rows.KINDS, "where", 3000.0)
    leans, right = leaning(coder, "where", ("left", "right"))
    assert len(right) > 30
    assert np.mean((leans > 0) == right) > 0.8, "chance is a half; 0.84 to 0.97 with one tokenizer or another"


@pytest.mark.parametrize("way", conversations.WHICH)
def test_which_picture_is_meant_can_be_told_before_any_training(
    coder: Coder, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(conversations, "WHICH", (way,))
    leans, second = leaning(coder, "two", ("first", "second"))
    assert len(second) > 20
    assert np.mean(leans[second][:, None] > leans[~second]) > 0.6, "of all pairs; chance is a half"
