"""What people are shown of the arena: every extent in its state, or cells that add up to the same bytes."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from mmserve.cache_server.arena_drawing import draw
from mmserve.cache_server.entries import Lease
from mmserve.cache_server.shared_table import SharedMediaTable
from mmserve.cache_server.table import MediaTable
from mmserve.ipc.arena import extent_nbytes
from mmserve.messages.cache import AllocItem
from mmserve.messages.server_state import ArenaExtent, ArenaState, ExtentState
from tests.fakes.pictures.cache import alloc_item
from tests.fakes.pictures.marks import NoMarks

EXTENT = extent_nbytes(100)
NBYTES = 10 * EXTENT
CAT, DOG = alloc_item("cat"), alloc_item("dog")


def new_table() -> MediaTable:
    return MediaTable(NBYTES, first_generation=1, first_item_id=1, first_token=1 << 32, arena=NoMarks())


def leased(table: MediaTable, request: str, *items: AllocItem) -> list[int]:
    return [record.item_id for record in table.alloc(Lease("http-0", request), items).records]


def drawn(table: MediaTable) -> ArenaState:
    return draw(NBYTES, table.num_leases, *table.extents())


def states(drawing: ArenaState) -> Counter[tuple[ExtentState, int]]:
    return Counter((extent.state, extent.leases) for extent in drawing.extents)


def test_an_image_is_followed_from_writing_to_eviction() -> None:
    table = new_table()
    cat, dog = leased(table, "one", CAT, DOG)
    leased(table, "two", CAT)
    assert states(drawn(table)) == {("reserved", 2): 1, ("writing", 2): 1, ("reserved", 1): 1, ("writing", 1): 1}
    table.set_data(Lease("http-0", "one"), (cat, dog), True)
    assert states(drawn(table)) == {("reserved", 2): 1, ("data", 2): 1, ("reserved", 1): 1, ("data", 1): 1}
    table.set_embed("visual-0", (cat, dog), (True, False))
    assert states(drawn(table)) == {("embed", 2): 1, ("failed", 1): 2}
    for request in ("one", "two"):
        table.release(Lease("http-0", request))
    assert states(drawn(table)) == {("embed", 0): 1}


def test_holes_are_what_is_left() -> None:
    table = new_table()
    empty = drawn(table)
    assert (empty.num_holes, empty.free_nbytes, empty.largest_hole_nbytes, empty.extents) == (1, NBYTES, NBYTES, ())
    leased(table, "one", CAT)
    leased(table, "two", DOG)
    table.release(Lease("http-0", "one"))
    drawing = drawn(table)
    assert drawing.free_nbytes + sum(extent.nbytes for extent in drawing.extents) == drawing.nbytes
    assert drawing.largest_hole_nbytes < drawing.free_nbytes
    assert drawing.num_leases == 1
    assert [extent.offset for extent in drawing.extents] == sorted(extent.offset for extent in drawing.extents)


def test_the_shared_table_draws_what_it_holds() -> None:
    table = new_table()
    leased(table, "one", CAT)
    assert SharedMediaTable(table).drawing(NBYTES) == drawn(table)


def side_by_side(pieces: list[tuple[int, ExtentState, int]]) -> list[ArenaExtent]:
    """Extents of these sizes, each after a hole of one byte."""
    extents, offset = [], 0
    for nbytes, state, leases in pieces:
        extents.append(ArenaExtent(offset + 1, nbytes, state, leases))
        offset += 1 + nbytes
    return extents


PIECES = st.lists(
    st.tuples(st.integers(1, 40), st.sampled_from(["embed", "data"]), st.integers(0, 2)), min_size=9, max_size=40
)


@given(PIECES)
def test_cells_hold_the_bytes_of_the_extents(pieces: list[tuple[int, ExtentState, int]]) -> None:
    extents = side_by_side(pieces)
    nbytes = sum(extent.nbytes + 1 for extent in extents)
    drawing = draw(nbytes, 0, extents, [], max_extents=8)
    assert drawing.num_extents == len(extents)
    assert 1 <= len(drawing.extents) <= 8
    assert sum(cell.nbytes for cell in drawing.extents) == sum(extent.nbytes for extent in extents)
    assert all(cell.nbytes <= drawing.cell_nbytes for cell in drawing.extents)
    assert {cell.state for cell in drawing.extents} <= {extent.state for extent in extents}


def test_a_cell_is_in_the_state_of_most_of_its_bytes() -> None:
    extents = side_by_side([(3, "embed", 1), (2, "data", 5), (4, "data", 0)])
    (cell,) = draw(12, 0, extents, [], max_extents=1).extents
    assert cell == ArenaExtent(0, 9, "data", 5)
