"""What the cache server has, joined with fronts' names, is what a front's table says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mmserve.cache_server.stored_keys import StoredKeys
from mmserve.cluster.scale.holdings import HoldingsTable
from mmserve.cluster.scale.reports import HOLDINGS, Holdings
from mmserve.messages.cache import AllocItem
from mmserve.messages.media import short_key
from mmserve.router.reports import held_pictures
from mmserve.router.reports.held_pictures import HeldPictures
from tests.fakes.http.questions import AskedSocket
from tests.unit.cache_server.test_table import _Bench, item


class _Server:
    """A table with room for two embeddings and a file, its link to the router, and a front's table."""

    def __init__(self) -> None:
        self.link = AskedSocket()
        self.pictures = HeldPictures(1)
        self.front = HoldingsTable()
        self.epochs = 1
        self.start_cache()

    def start_cache(self) -> None:
        """Start the cache server for the first time, or again: the router connects to it anew."""
        self.bench = _Bench(3)
        self.bench.table.follow_embeddings()
        self.keys = StoredKeys(self.link.as_socket())
        self.link.is_asked = True

    def start_router(self) -> None:
        """It forgets all names."""
        self.epochs += 1
        self.pictures = HeldPictures(self.epochs)
        self.link.is_asked = True

    def tell(self, *, lost: bool = False) -> None:
        """From the cache server to the router. ``lost``: the message does not arrive."""
        self.keys.publish(self.bench.table.take_embedding_changes())
        sent, self.link.sent = self.link.sent, []
        for data in () if lost else sent:
            self.link.is_asked |= not self.pictures.stored(HOLDINGS.decode(data))

    def report(self, *, lost: bool = False) -> None:
        """From the router to the front, which asks for what it misses."""
        report = self.pictures.announced.report(snapshot=False)
        if not lost and not self.front.apply("a", report):
            assert self.front.apply("a", self.pictures.announced.report(snapshot=True))

    def encode(self, key: str, name: int) -> None:
        self.pictures.named([(name, _key(item(key)))])
        self.bench.encoded(key)

    def in_front(self) -> set[int]:
        self.tell()
        self.report()
        return self.front.names("a")


def _key(spec: AllocItem) -> int:
    return short_key(spec.key)


def test_an_evicted_picture_disappears_from_the_fronts_table() -> None:
    server = _Server()
    server.encode("cat", 1)
    assert server.in_front() == {1}
    server.encode("dog", 2)
    server.encode("bird", 3)
    assert server.in_front() == {2, 3}, "the arena has room for two"


def test_a_picture_that_nobody_has_encoded_is_not_held() -> None:
    server = _Server()
    server.pictures.named([(1, _key(item("cat")))])
    assert server.in_front() == set()


def test_a_restart_of_the_cache_server_empties_the_table_and_one_of_the_router_too_until_names_come_again() -> None:
    server = _Server()
    server.encode("cat", 1)
    assert server.in_front() == {1}
    server.start_cache()
    assert server.in_front() == set()
    server.encode("cat", 1)
    assert server.in_front() == {1}
    server.start_router()
    assert server.in_front() == set()
    server.pictures.named([(1, _key(item("cat")))])
    assert server.in_front() == {1}, "its embedding has outlived the router"


def test_lost_messages_are_noticed_at_the_next_one_also_if_nothing_changes_any_more() -> None:
    server = _Server()
    server.encode("cat", 1)
    server.tell()
    server.report(lost=True)
    assert server.in_front() == {1}
    server.encode("dog", 2)
    server.tell(lost=True)
    server.encode("bird", 3)
    server.tell()
    assert server.in_front() == {2, 3}


def test_a_picture_has_as_many_names_as_it_has_urls_and_a_name_as_many_keys_as_it_is_processed_in_ways() -> None:
    pictures = HeldPictures(1)
    pictures.named([(1, 10), (2, 10), (3, 10), (3, 11)])
    assert pictures.stored(Holdings("pictures", 1, 0, (10, 11), snapshot=True))
    assert pictures.announced.names == {1, 2, 3}
    pictures.stored(Holdings("pictures", 1, 1, (), (10,)))
    assert pictures.announced.names == {3}
    pictures.stored(Holdings("pictures", 1, 2, (), (11,)))
    assert pictures.announced.names == set()
    pictures.named([(name, 10) for name in range(9)])
    pictures.stored(Holdings("pictures", 1, 3, (10,)))
    assert pictures.announced.names == {5, 6, 7, 8}


def test_names_are_bounded() -> None:
    most = held_pictures._MAX_KEYS
    pictures = HeldPictures(1)
    pictures.stored(Holdings("pictures", 1, 0, tuple(range(most + 5)), snapshot=True))
    pictures.named([(key, key) for key in range(most + 5)])
    assert len(pictures.announced.names) == most
    assert 4 not in pictures.announced.names


_Step = tuple[str, int | None]
_STEPS: st.SearchStrategy[_Step] = st.one_of(
    st.tuples(st.just("encode"), st.integers(0, 4)),
    st.tuples(st.just("encode"), st.integers(0, 4)),
    st.tuples(
        st.sampled_from(("tell", "report", "lose telling", "lose report", "cache dies", "router dies")), st.none()
    ),
)


@given(st.lists(_STEPS, max_size=40))
def test_whatever_happens_the_table_is_what_the_arena_has_of_what_was_named(
    steps: list[tuple[str, int | None]],
) -> None:
    server, named = _Server(), set[int]()
    for step, number in steps:
        match step:
            case "encode":
                assert number is not None
                server.encode(str(number), number)
                named.add(number)
            case "tell" | "lose telling":
                server.tell(lost=step != "tell")
            case "report" | "lose report":
                server.report(lost=step != "report")
            case "cache dies":
                server.start_cache()
            case "router dies":
                server.start_router()
                named.clear()
    # A message that was lost is noticed at the next one.
    server.bench.encoded("another")
    server.tell()
    held = {number for number in named if server.bench.table.look_up(item(str(number))).state == "embedding"}
    assert server.in_front() == held
