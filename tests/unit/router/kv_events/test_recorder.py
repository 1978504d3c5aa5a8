"""Events say what the prefix cache holds: blocks that were computed, in the words of other projects."""

from __future__ import annotations

from array import array

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from mmserve.config.resolved.deployment import FIRST_VIRTUAL_TOKEN
from mmserve.messages.media import MediaSpan
from mmserve.messages.step import StepPlan
from mmserve.router.kv_cache.manager import BlockTable, KvCacheManager
from mmserve.router.kv_events.recorder import BlockRecorder, pictures_of
from mmserve.router.kv_events.wire import BlockRemoved, BlockStored, Event, encode
from tests.fakes.http.kv_subscriber import Holdings, decode
from tests.unit.router.builders import Engine, abort, request, span

SIZE, PLACEHOLDER, NOW_S = 16, 7, 1.5


def stored(kv: KvCacheManager, tokens: list[int], spans: tuple[MediaSpan, ...] = (), salt: str = "") -> BlockTable:
    """The blocks of a sequence that is planned as a whole."""
    ids = array("q", tokens)
    table = kv.allocate(len(ids), kv.match_prefix(ids, salt), spans)
    assert table is not None
    kv.cache_full_blocks(table, ids, len(ids))
    return table


def events_of(tokens: list[int], spans: tuple[MediaSpan, ...] = (), salt: str = "") -> list[Event]:
    """Of one step that computes these tokens."""
    recorder = BlockRecorder(SIZE, PLACEHOLDER)
    stored(KvCacheManager(64, SIZE, recorder), tokens, spans, salt)
    recorder.planned()
    return recorder.computed()


def named(index: int, start: int, num_tokens: int, key: bytes) -> MediaSpan:
    return structs.replace(span(start, num_tokens, index), media_index=index, key=key)


def virtual(first: int, count: int) -> list[int]:
    return [*range(FIRST_VIRTUAL_TOKEN + first, FIRST_VIRTUAL_TOKEN + first + count)]


def test_whole_blocks_of_a_text_are_one_event() -> None:
    (event,) = events_of([*range(40)])
    assert isinstance(event, BlockStored)
    assert (event.token_ids, event.parent_block_hash, event.extra_keys) == ([*range(32)], None, None)
    assert (event.block_size, event.medium) == (SIZE, "GPU")
    assert len(set(event.block_hashes)) == 2


def test_a_continued_prompt_names_its_parent() -> None:
    recorder = BlockRecorder(SIZE, PLACEHOLDER)
    kv = KvCacheManager(64, SIZE, recorder)
    stored(kv, [*range(32)])
    stored(kv, [*range(48)])
    recorder.planned()
    first, second = recorder.computed()
    assert isinstance(first, BlockStored)
    assert isinstance(second, BlockStored)
    assert second.parent_block_hash == first.block_hashes[-1]
    assert second.token_ids == [*range(32, 48)]


def test_pictures_are_placeholders_and_keys_with_their_distance_from_the_block() -> None:
    tokens = [*range(10), *virtual(0, 30), 99, *virtual(500, 8), *range(20)]
    (event,) = events_of(tokens, (named(0, 10, 30, b"\xaa"), named(1, 41, 8, b"\xbb")))
    assert isinstance(event, BlockStored)
    assert event.token_ids[:50] == [*range(10), *[PLACEHOLDER] * 30, 99, *[PLACEHOLDER] * 8, 0]
    assert event.extra_keys == [(("aa", 10),), (("aa", -6),), (("aa", -22), ("bb", 9)), (("bb", -7),)]


def test_a_picture_of_several_runs_is_one_picture() -> None:
    spans = (named(0, 5, 4, b"\xaa"), named(0, 10, 4, b"\xaa"), named(1, 20, 4, b"\xaa"))
    assert [tuple(each) for each in pictures_of(spans)] == [(5, 14, "aa"), (20, 24, "aa")]


def test_a_salt_is_a_key_of_the_first_block() -> None:
    (event,) = events_of([*range(32)], salt="mine")
    (plain,) = events_of([*range(32)])
    assert isinstance(event, BlockStored)
    assert isinstance(plain, BlockStored)
    assert event.extra_keys == [("mine",), None]
    assert not set(event.block_hashes) & set(plain.block_hashes)


def test_names_depend_on_the_picture_and_not_on_its_virtual_ids() -> None:
    def names(first: int, key: bytes) -> list[int]:
        (event,) = events_of([1, 2, *virtual(first, 30)], (named(0, 2, 30, key),))
        assert isinstance(event, BlockStored)
        return event.block_hashes

    assert names(0, b"\xaa") == names(4000, b"\xaa")
    assert not set(names(0, b"\xaa")) & set(names(0, b"\xbb"))


def test_nothing_is_said_before_the_step_has_run() -> None:
    recorder = BlockRecorder(SIZE, PLACEHOLDER)
    kv = KvCacheManager(64, SIZE, recorder)
    stored(kv, [*range(32)])
    recorder.planned()
    stored(kv, [*range(100, 132)])
    recorder.planned()
    (first,) = recorder.computed()
    (second,) = recorder.computed()
    assert isinstance(first, BlockStored)
    assert isinstance(second, BlockStored)
    assert (first.token_ids[0], second.token_ids[0]) == (0, 100)


def test_a_block_whose_step_failed_is_never_announced() -> None:
    recorder = BlockRecorder(SIZE, PLACEHOLDER)
    kv = KvCacheManager(64, SIZE, recorder)
    table = stored(kv, [*range(48)])
    recorder.planned()
    kv.invalidate(table.nodes[1])
    (event,) = recorder.computed()
    assert isinstance(event, BlockStored)
    assert event.token_ids == [*range(16)]


def test_evicted_blocks_are_removed_before_their_memory_is_announced_again() -> None:
    recorder = BlockRecorder(SIZE, PLACEHOLDER)
    kv = KvCacheManager(4, SIZE, recorder)
    kv.free(stored(kv, [*range(64)]))
    recorder.planned()
    (before,) = recorder.computed()
    stored(kv, [*range(100, 132)])
    recorder.planned()
    removed, after = recorder.computed()
    assert isinstance(before, BlockStored)
    assert isinstance(removed, BlockRemoved)
    assert isinstance(after, BlockStored)
    assert set(removed.block_hashes) == set(before.block_hashes[2:])


def test_a_name_is_removed_with_the_last_block_that_has_it() -> None:
    """The cache server was restarted, so the picture has other virtual ids: both prompts stay cached."""
    recorder = BlockRecorder(SIZE, PLACEHOLDER)
    kv = KvCacheManager(64, SIZE, recorder)
    old, new = (stored(kv, virtual(first, 16), (named(0, 0, 16, b"\xaa"),)) for first in (0, 900))
    recorder.planned()
    assert len(recorder.computed()) == 2
    kv.invalidate(old.nodes[0])
    recorder.planned()
    assert recorder.computed() == []
    kv.invalidate(new.nodes[0])
    recorder.planned()
    assert [type(event) for event in recorder.computed()] == [BlockRemoved]


class ListenedEngine(Engine):
    """A scheduler whose events a subscriber follows."""

    def __init__(self, depth: int) -> None:
        self.recorder, self.holdings = BlockRecorder(SIZE, PLACEHOLDER), Holdings()
        super().__init__(num_blocks=16, max_num_seqs=4, depth=depth, listener=self.recorder)
        schedule = self.scheduler.schedule

        def planned() -> StepPlan | None:
            plan = schedule()
            if plan is not None:
                self.recorder.planned()
            return plan

        self.scheduler.schedule = planned  # type: ignore[method-assign]

    def apply(self) -> None:
        super().apply()
        if events := self.recorder.computed():
            self.holdings.apply(decode(encode(events, NOW_S, "map")))
        if not self.in_flight:
            assert len(self.holdings.blocks) == self.num_full_nodes()

    def num_full_nodes(self) -> int:
        tree = self.scheduler.kv._tree
        roots = [tree.root, *tree._salted_roots.values()]
        return sum(tree.is_full(node) for root in roots for node in tree.descendants(root))


prompts = st.tuples(st.integers(0, 3), st.integers(1, 90), st.sampled_from(["", "salt"]), st.integers(1, 40))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(prompts, st.sampled_from(["", "abort", "fail"])), max_size=14), st.sampled_from([1, 2]))
def test_a_subscriber_knows_what_the_cache_holds(traffic: list, depth: int) -> None:
    """Also while blocks are evicted, steps fail, and the next step is planned before the last has run."""
    engine = ListenedEngine(depth)
    for number, ((kind, length, salt, max_tokens), ends) in enumerate(traffic):
        if ends == "fail":
            engine.rank.broken_seeds.add(number)
        prompt = [*range(100 * kind, 100 * kind + length)]
        message = request(str(number), prompt, max_tokens=max_tokens, seed=number, cache_salt=salt)
        engine.scheduler.receive(message)
        engine.run_step()
        if ends == "abort":
            engine.scheduler.receive(abort(str(number)))
    engine.run()
    assert len(engine.holdings.blocks) == engine.num_full_nodes()
