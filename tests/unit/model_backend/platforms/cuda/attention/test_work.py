"""The lists of work of a step: every key of every row once, in splits that begin at fixed positions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mmserve.model_backend.attention.interface import AttentionInput
from mmserve.model_backend.platforms.cuda.attention.work import (
    block_tables,
    prefill_tiles,
    row_tiles,
    short_chunks,
    split_work,
)

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
@pytest.mark.parametrize("rows", [1, 3])
def test_items_cover_what_rows_see_and_merges_what_they_have_in_splits(window: int | None, rows: int) -> None:
    positions, tables = np.array([0, 63, 64, 128, 299]), np.array([0, 10, 20, 30, 40])
    tiles = np.stack((np.arange(5) * rows, np.full(5, rows), positions, tables), axis=1)
    items, merges, num_places = split_work(tiles, BLOCK, SPLIT, window)
    places: list[int] = []
    for first_row, _, position, table in tiles.tolist():
        own = items[items[:, 0] == first_row]
        begin = 0 if window is None else max(0, position + 1 - window) // SPLIT * SPLIT
        assert own[:, 1:3].tolist() == [[rows, position]] * len(own)
        assert own[:, 3].tolist() == list(range(begin, position + rows, SPLIT))
        assert (own[:, 4] == table + own[:, 3] // BLOCK).all()
        assert (own[:, 6] == len(own)).all()
        for token in range(rows):
            merge = merges[merges[:, 0] == first_row + token]
            if len(own) == 1:
                assert own[0, 5] == -1
                assert not len(merge)
            else:
                ((_, first, count),) = merge.tolist()
                assert (own[:, 5] + token * own[:, 6]).tolist() == list(range(first, first + count))
                places += range(first, first + count)
    assert sorted(places) == list(range(num_places))


def test_a_row_of_no_sequence_is_an_item_without_tokens() -> None:
    items, merges, num_places = split_work(np.array([[3, 1, -1, 7]]), BLOCK, SPLIT)
    assert items.tolist() == [[3, 1, -1, 0, 7, -1, 1]]
    assert (len(merges), num_places) == (0, 0)


def test_long_chunks_and_those_that_read_ahead_are_prefill() -> None:
    step = step_of((40, 1), (3, 4), (8, 4), (0, 5))
    assert short_chunks(step, 4).tolist() == [True, True, True, False]
    ends = [41, 4, 5, 6, 7, 9, 12, 12, 12, 1, 2, 3, 4, 5]
    assert short_chunks(replace(step, image_ends=np.array(ends)), 4).tolist() == [True, True, False, False]


def test_tiles_cover_the_rows_of_the_chosen_chunks() -> None:
    step, tables = step_of((40, 1), (16, 3), (100, 10), (0, 9)), np.array([0, 3, 6, 13])
    chosen = np.array([False, True, True, False])
    expected = [[1, 3, 16, 3], [4, 4, 100, 6], [8, 4, 104, 6], [12, 2, 108, 6]]
    assert row_tiles(step, tables, chosen, 4).tolist() == expected
    assert row_tiles(step, tables, ~chosen, 8).tolist() == [[0, 1, 40, 0], [14, 8, 0, 13], [22, 1, 8, 13]]


def test_prefill_computes_the_tiles_that_read_most_first() -> None:
    step = step_of((100, 10), (0, 1000))
    tiles = prefill_tiles(step, row_tiles(step, np.array([0, 7]), np.array([True, True]), 4))
    assert (np.diff(tiles[:, 5]) <= 0).all()
    assert (tiles[:, 4] == tiles[:, 2] + tiles[:, 1]).all()
    assert (tiles[:, 5] == tiles[:, 4]).all()
    assert sorted(tiles[:, 0].tolist()) == [0, 4, 8, *range(10, 1010, 4)]


def test_a_tile_that_ends_in_an_image_reads_to_the_end_of_it() -> None:
    step = step_of((8, 12), image_ends=[11, 20, 20, 20, 20, 20, 20, 20, 20, 20, 21, 22])
    tiles = prefill_tiles(step, row_tiles(step, np.array([0]), np.array([True]), 4))
    assert tiles[tiles[:, 0].argsort()][:, 4:].tolist() == [[12, 20], [16, 20], [20, 22]]


def test_no_chunk_is_no_work() -> None:
    step, none = step_of((3, 1)), np.array([False])
    tiles = row_tiles(step, np.array([0]), none, 4)
    assert prefill_tiles(step, tiles).shape == (0, 6)
    items, merges, num_places = split_work(tiles, BLOCK, SPLIT)
    assert (items.shape, merges.shape, num_places) == ((0, 7), (0, 3), 0)
