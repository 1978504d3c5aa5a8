"""The text model's head start: what it can answer before any training."""

import numpy as np
import pytest
import torch

pytest.importorskip("tokenizers")

from training import rows
from training.pictures import labels
from training.rows import Row, make_row, stack
from training.stages import prior
from training.stages.language import logits_of, oracle_tokens
from training.stages.models import Text
from training.tokens import Coder
from training.words import conversations

FIRST_SEEDS = (930_000_000, 940_000_000, 950_000_000)  # of rows; one draw alone scatters by a tenth


@pytest.fixture(scope="module")
def planted(coder: Coder) -> Text:
    torch.manual_seed(2)
    text = Text()
    prior.plant(text, coder)
    return text


def asks(row: Row, kind: str, endings: tuple[int, int]) -> bool:
    """Whether the row has an answer of the kind that ends in one of two tokens."""
    return any(name == kind and row.targets[last - 1] in endings for name, _, last in row.answers)


@torch.no_grad()
def leaning(
    text: Text, coder: Coder, kind: str, words: tuple[str, str], rows_per_seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Of all answers of a kind that end in one of two words: how much more the second is expected, and whether it is
    the right one."""
    one, other = endings = tuple(coder.ids(f"the {word}")[1] for word in words)
    drawn = [make_row(first + index, coder) for first in FIRST_SEEDS for index in range(rows_per_seed)]
    batch = stack([row for row in drawn if asks(row, kind, endings)])  # rows are independent of each other
    logits, target, places = logits_of(text, text, batch, oracle_tokens(batch, torch.from_numpy(labels.basis()), None))
    ends = [last - 1 for name, _, last in batch.answers if name == kind]
    said = np.isin(target, endings) & np.isin(places, ends)
    return (logits[said, other] - logits[said, one]).numpy(), (target[said] == other).numpy()


def test_the_side_of_a_thing_can_be_read_before_any_training(
    planted: Text, coder: Coder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(rows.KINDS, "where", 3000.0)
    leans, right = leaning(planted, coder, "where", ("left", "right"), 8)
    assert len(right) > 30
    assert np.mean((leans > 0) == right) > 0.8, "chance is a half; 0.84 to 0.97 with one tokenizer or another"


@pytest.mark.parametrize("way", conversations.WHICH)
def test_which_picture_is_meant_can_be_told_before_any_training(
    planted: Text, coder: Coder, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(conversations, "WHICH", (way,))
    leans, second = leaning(planted, coder, "two", ("first", "second"), 20)
    assert len(second) > 20
    assert np.mean(leans[second][:, None] > leans[~second]) > 0.6, "of all pairs; chance is a half"
