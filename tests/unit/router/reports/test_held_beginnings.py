"""What the prefix cache holds of what fronts have named is what a front's table says."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from mmserve.cluster.scale.holdings import HoldingsTable
from mmserve.router.kv_cache.manager import KvCacheManager
from mmserve.router.reports import held_beginnings
from mmserve.router.reports.held_beginnings import HeldBeginnings

SIZE = 16


def _compute(kv: KvCacheManager, tokens: array[int], salt: str = "") -> bool:
    """False if there is no room."""
    if (table := kv.allocate(len(tokens), kv.match_prefix(tokens, salt))) is None:
        return False
    kv.cache_full_blocks(table, tokens, len(tokens))
    kv.free(table)
    return True


def test_of_a_prompt_the_end_goes_first_so_who_holds_a_name_holds_those_before_it() -> None:
    held = HeldBeginnings(1)
    kv = KvCacheManager(8, SIZE, held)
    first, second = array("q", range(96)), array("q", range(1000, 1064))
    _compute(kv, first)
    held.hold(((1, 32), (2, 64), (3, 96)), kv.cached_blocks(first, ""), SIZE)
    _compute(kv, second)
    assert held.announced.names == {1, 2}


def test_what_is_shorter_than_a_block_ends_with_the_first_and_what_was_evicted_meanwhile_is_not_held() -> None:
    held = HeldBeginnings(1)
    kv = KvCacheManager(8, SIZE, held)
    tokens = array("q", range(48))
    _compute(kv, tokens)
    held.hold(((1, 15), (2, 16), (3, 47), (4, 64)), kv.cached_blocks(tokens, ""), SIZE)
    assert held.announced.names == {1, 2, 3}
    short = array("q", range(100, 108))
    held.hold(((9, 8),), kv.cached_blocks(short, ""), SIZE)
    assert 9 not in held.announced.names, "it has no block"


def test_a_salt_has_a_cache_of_its_own() -> None:
    held = HeldBeginnings(1)
    kv = KvCacheManager(8, SIZE, held)
    tokens = array("q", range(32))
    _compute(kv, tokens, "mine")
    assert kv.cached_blocks(tokens, "") == []
    assert len(kv.cached_blocks(tokens, "mine")) == 2


def test_names_of_the_same_tokens_are_bounded() -> None:
    held = HeldBeginnings(1)
    kv = KvCacheManager(8, SIZE, held)
    tokens = array("q", range(16))
    _compute(kv, tokens)
    nodes, most = kv.cached_blocks(tokens, ""), held_beginnings._MAX_NAMES
    for name in range(most + 5):
        held.hold(((name, 16),), nodes, SIZE)
    assert held.announced.names == {*range(5, most + 5)}


def _prompt(words: list[int]) -> array[int]:
    """Each word is two blocks, and what follows a word depends on it."""
    tokens = array("q")
    for word in words:
        tokens.extend(range(1000 * word, 1000 * word + 2 * SIZE))
    return tokens


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=3), st.booleans(), st.booleans()),
        max_size=30,
    )
)
def test_whatever_is_computed_and_evicted_the_table_is_what_the_cache_has(
    steps: list[tuple[list[int], bool, bool]],
) -> None:
    """A name is a tuple of words; reports are lost, and the router starts again, at random."""
    names: dict[tuple[int, ...], int] = {}
    front, epoch, named = HoldingsTable(), 0, set[tuple[int, ...]]()
    held = HeldBeginnings(epoch)
    kv = KvCacheManager(9, SIZE, held)
    for words, lost, restart in steps:
        if restart and lost:
            epoch, named = epoch + 1, set()
            held = HeldBeginnings(epoch)
            kv = KvCacheManager(9, SIZE, held)
        prefixes = [tuple(words[: length + 1]) for length in range(len(words))]
        if _compute(kv, _prompt(words)):
            named.update(prefixes)
            beginnings = [
                (names.setdefault(each, len(names)), 2 * SIZE * length) for length, each in enumerate(prefixes, start=1)
            ]
            held.hold(beginnings, kv.cached_blocks(_prompt(words), ""), SIZE)
        report = held.announced.report(snapshot=False)
        if not lost and not front.apply("a", report):
            assert front.apply("a", held.announced.report(snapshot=True))
    if not front.apply("a", held.announced.report(snapshot=False)):
        assert front.apply("a", held.announced.report(snapshot=True))
    cached = {each for each in named if len(kv.cached_blocks(_prompt([*each]), "")) == 2 * len(each)}
    assert front.names("a") == {names[each] for each in cached}


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=3), st.integers(1, 2 * SIZE)),
        min_size=1,
        max_size=30,
    )
)
def test_who_holds_a_name_holds_those_before_it_however_its_tokens_were_estimated(
    prompts: list[tuple[list[int], int]],
) -> None:
    """A front looks for the last name by bisection. Each prompt has its own estimate of a word's tokens."""
    names: dict[tuple[int, ...], int] = {}
    held = HeldBeginnings(0)
    kv = KvCacheManager(9, SIZE, held)
    for words, tokens_a_word in prompts:
        if _compute(kv, _prompt(words)):
            beginnings = [
                (names.setdefault(tuple(words[:length]), len(names)), tokens_a_word * length)
                for length in range(1, len(words) + 1)
            ]
            held.hold(beginnings, kv.cached_blocks(_prompt(words), ""), SIZE)
        for each, name in names.items():
            if name in held.announced.names:
                assert all(names[each[:length]] in held.announced.names for length in range(1, len(each)))
