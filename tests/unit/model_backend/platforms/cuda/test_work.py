"""The lists of work of a step: every key of every row once, in splits that begin at fixed positions."""

from __future__ import annotations

import numpy as np
import pytest

from mmserve.model_backend.attention.interface import AttentionInput
from mmserve.model_backend.platforms.cuda.attention.work import block_tables, decode_work, prefill_tiles

BLOCK, SPLIT = 16, 64


def step_of(*chunks: tuple[int, int], image_ends: list[int] | None = None) -> AttentionInput:
    starts, counts = (np.array(values) for values in zip(*chunks, strict=True))
    slots = np.arange(len(chunks))[::-1].copy()
    tables = np.arange(len(chunks) * 20).reshape(len(chunks), 20)
    ends = None if image_ends is None else np.array(image_ends)
    return AttentionInput(slots, starts, counts, tables, np.arange(counts.sum()), ends)


def test_tables_stop_at_the_last_block_that_is_read() -> None:
    ids, firsts = block_tables(step_of((32, 1), (15, 1), (0, 16), (-1, 1)), BLOCK)
    assert ids.tolist() == [60, 61, 62, 40, 20]
    assert firsts.tolist() == [0, 3, 4, 5]


@pytest.mark.parametrize("window", [None, 1, 63, 64, 65, 200])
def test_decode_items_cover_what_each_row_sees(window: int | None) -> None:
    lengths = np.array([1, 64, 65, 129, 300, 0])
    tables = np.array([0, 10, 20, 30, 40, 70])
    items, merges, num_places = decode_work(lengths, tables, BLOCK, SPLIT, window)
    places: list[int] = []
    for row, length in enumerate(lengths.tolist()):
        own = items[items[:, 0] == row]
        begin = 0 if window is None else max(0, length - window) // SPLIT * SPLIT
        assert own[:, 1].tolist() == list(range(begin, max(1, length), SPLIT))
        assert (own[:, 2] == tables[row] + own[:, 1] // BLOCK).all()
        merge = merges[merges[:, 0] == row]
        if len(own) == 1:
            assert own[0, 3] == -1
            assert not len(merge)
        else:
            assert merge.tolist() == [[row, own[0, 3], len(own)]]
            assert own[:, 3].tolist() == list(range(own[0, 3], own[0, 3] + len(own)))
            places += own[:, 3].tolist()
    assert sorted(places) == list(range(num_places))


def test_prefill_tiles_cover_the_rows_behind_the_decode_rows_longest_first() -> None:
    step = step_of((40, 1), (7, 1), (16, 3), (100, 10), (0, 1000))
    tables = np.array([0, 3, 4, 6, 13])
    tiles = prefill_tiles(step, tables, 4)
    assert (np.diff(tiles[:, 5]) <= 0).all()
    by_row = tiles[tiles[:, 0].argsort()]
    assert by_row[:, 0].tolist() == [2, 5, 9, 13, *range(15, 1015, 4)]
    assert by_row[:4, 1].tolist() == [3, 4, 4, 2]
    assert by_row[:4, 2].tolist() == [16, 100, 104, 108]
    assert by_row[:4, 3].tolist() == [4, 6, 6, 6]
    assert (by_row[:, 4] == by_row[:, 1] + by_row[:, 2]).all()
    assert (by_row[:, 5] == by_row[:, 4]).all()


def test_a_tile_that_ends_in_an_image_reads_to_the_end_of_it() -> None:
    ends = [9, 11, 20, 20, 20, 20, 20, 20, 20, 20, 20, 21]
    tiles = prefill_tiles(step_of((8, 12), image_ends=[*ends[1:], 22]), np.array([0]), 4)
    assert tiles[tiles[:, 0].argsort()][:, 4:].tolist() == [[12, 20], [16, 20], [20, 22]]


def test_a_step_of_decode_rows_has_no_tiles_and_one_of_a_prompt_has_no_items() -> None:
    assert prefill_tiles(step_of((3, 1)), np.array([0]), 4).shape == (0, 6)
    none = np.zeros(0, dtype=np.int64)
    items, merges, num_places = decode_work(none, none, BLOCK, SPLIT)
    assert (items.shape, merges.shape, num_places) == ((0, 4), (0, 3), 0)
