"""Training rows: the tree mask, positions, and which tokens are learned."""

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from training import rows, tokens
from training.pictures.looks import VARIED
from training.pictures.world import PATCHES
from training.rows import make_row, stack, tree_mask
from training.tokens import EOS, IMAGE, Coder


def test_one_segment_is_plain_causal() -> None:
    segments = np.array([[0, 0, 0, 1, 1, 1]])
    assert np.array_equal(tree_mask(segments)[0], np.tril(np.ones((6, 6), bool)))


def test_segments_see_the_prefix_and_themselves_only() -> None:
    mask = tree_mask(np.array([[0, 0, 1, 1, 2, -1]]))[0]
    assert mask[4].tolist() == [True, True, False, False, True, False]
    assert mask[3].tolist() == [True, True, True, True, False, False]


def test_rows_are_fixed_by_their_seed_and_learn_every_answer(coder: Coder) -> None:
    for seed in range(30):
        row = make_row(seed, coder)
        assert row.tokens == make_row(seed, coder).tokens
        assert len(row.tokens) <= rows.LENGTH
        assert row.tokens.count(IMAGE) == PATCHES * len(row.scenes)
        learned = [index for index, target in enumerate(row.targets) if target >= 0]
        assert learned == [index for _, first, last in row.answers for index in range(first, last + 1)]
        for _, first, last in row.answers:
            assert row.targets[last] == EOS
            assert row.targets[first:last] == row.tokens[first + 1 : last + 1]
            assert EOS not in row.tokens[first + 1 : last + 1]


def test_positions_restart_after_the_prefix(coder: Coder) -> None:
    row = make_row(1, coder)
    ends = [position for position, segment in zip(row.positions, row.segments, strict=True) if segment == 0]
    assert ends == list(range(len(ends)))
    firsts = {}
    for position, segment in zip(row.positions, row.segments, strict=True):
        firsts.setdefault(segment, position)
    assert all(first >= len(ends) for segment, first in firsts.items() if segment > 0)


def test_stacked_slots_point_at_picture_tokens(coder: Coder) -> None:
    batch = stack([make_row(seed, coder) for seed in range(6)])
    assert len(batch.slots) == PATCHES * len(batch.scenes)
    assert (batch.tokens.reshape(-1)[batch.slots] == IMAGE).all()


def test_pieces_tokenise_like_the_whole(coder: Coder) -> None:
    whole = coder.tokenizer.encode(
        "<s><|user|><image>What colour is it?<|assistant|>red</s>", add_special_tokens=False
    ).ids
    pieces = [
        tokens.BOS,
        tokens.USER,
        IMAGE,
        *coder.ids("What colour is it?"),
        tokens.ASSISTANT,
        *coder.ids("red"),
        EOS,
    ]
    assert whole == pieces


def test_every_scene_of_a_row_can_be_drawn(coder: Coder) -> None:
    """Only varied papers go without a name; a second picture that takes the first one's colour takes a named one."""
    for seed in range(600):
        assert all(scene.background or scene.style == VARIED for scene in make_row(seed, coder, loose=0.05).scenes)
