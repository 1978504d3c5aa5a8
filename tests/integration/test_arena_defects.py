"""Eight defects of other servers' shared-memory caches (rings with reader counts, pickled handles, unchecked sizes),
each tested against the real table, arena and rank.
"""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from mmserve.cache_server.entries import Lease
from mmserve.cache_server.run import new_table
from mmserve.cache_server.table import MediaTable
from mmserve.ipc.arena import Arena, StaleHandle
from mmserve.messages.cache import MediaRecord
from mmserve.messages.media import Handle
from mmserve.runtime.errors import StartupError
from mmserve.supervisor.inherited import arena_of
from tests.fakes.models.checkpoints import IMAGE, make_llava
from tests.fakes.pictures.cache import alloc_item, arena_for
from tests.fakes.pictures.embeddings import prompt_with_images, put_rows
from tests.fakes.ranks.engine import Driver, make_runner

NUM_ITEMS = 20
MIB = 1 << 20


class Cache:
    """A table over an arena with room for the bytes and embeddings of NUM_ITEMS images."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.table: MediaTable = new_table(arena)

    def write(self, request: str, *names: str) -> tuple[MediaRecord, ...]:
        """Allocate and write as an HTTP worker does. The leases stay."""
        lease = Lease("http", request)
        reply = self.table.alloc(lease, [alloc_item(name) for name in names])
        assert not reply.refused
        for name, record in zip(names, reply.records, strict=True):
            if record.state == "write":
                assert record.data is not None
                self.arena.write(record.data, content(name))
        self.table.set_data(lease, [record.item_id for record in reply.records], True)
        return reply.records

    def encode(self, records: tuple[MediaRecord, ...]) -> None:
        """Write the embeddings as a visual server does."""
        for record in records:
            if self.table.get_embed("visual", [record.item_id]) == ("pending",):
                self.arena.write(record.embed, content(f"rows of {record.item_id}"))
                self.table.set_embed("visual", [record.item_id], [True])

    def release(self, request: str) -> None:
        self.table.release(Lease("http", request))

    def cached(self, *names: str) -> None:
        for name in names:
            self.encode(self.write(f"made {name}", name))
            self.release(f"made {name}")

    def churn(self, times: int = 5 * NUM_ITEMS) -> None:
        """Add many other images, which evict unleased ones."""
        for number in range(times):
            self.cached(f"churn {number}")

    def rows(self, record: MediaRecord) -> bytes:
        return bytes(self.arena.readable(record.embed))


def content(name: str) -> bytes:
    return name.encode().ljust(100, b".")


@pytest.fixture
def cache() -> Iterator[Cache]:
    arena = arena_for(NUM_ITEMS)
    yield Cache(arena)
    arena.close()


def _only_allocated(cache: Cache, request: str) -> None:
    cache.table.alloc(Lease("http", request), [alloc_item(request)])


def _only_written(cache: Cache, request: str) -> None:
    cache.write(request, request)


def _encoded_but_never_read(cache: Cache, request: str) -> None:
    cache.encode(cache.write(request, request))


def _dead_while_encoding(cache: Cache, request: str) -> None:
    (record,) = cache.write(request, request)
    cache.table.get_embed("visual", [record.item_id])
    cache.table.drop_owner("visual", may_live=False)


@pytest.mark.parametrize("got_to", [_only_allocated, _only_written, _encoded_but_never_read, _dead_while_encoding])
def test_d1_released_images_that_were_not_read_are_evicted(cache: Cache, got_to: Callable[[Cache, str], None]) -> None:
    """For example if the client disconnected, the prompt was too long or the queue was full."""
    for number in range(NUM_ITEMS):
        got_to(cache, f"unread {number}")
        cache.release(f"unread {number}")
    assert cache.table.num_leases == 0
    cache.churn(100)


def test_d2_all_choices_of_a_request_read_under_one_lease(cache: Cache) -> None:
    (record,) = cache.write("n = 4", "cat")
    cache.encode((record,))
    seen = []
    for _ in range(4):
        seen.append(cache.rows(record))
        cache.churn()
    assert seen == [seen[0]] * 4
    cache.release("n = 4")
    cache.churn()
    with pytest.raises(StaleHandle):
        cache.rows(record)


def test_d3_repeated_allocation_and_release_do_not_affect_another_lease(cache: Cache) -> None:
    """A request may be preempted, resumed, submitted again and released twice."""
    (record,) = cache.write("victim", "cat")
    cache.encode((record,))
    for _ in range(5):
        assert cache.write("preempted", "cat")[0].embed == record.embed
        cache.rows(record)
    cache.release("preempted")
    cache.release("preempted")
    cache.churn()
    assert cache.rows(record) == content(f"rows of {record.item_id}")


@pytest.mark.parametrize("wrong", ["stale", "forged", "beyond", "misshapen"])
def test_d4_a_wrong_handle_in_a_step_fails_only_its_own_request(tmp_path: Path, wrong: str) -> None:
    """It fails with "media lost", after which the HTTP worker allocates again."""
    directory, arena = make_llava(tmp_path), Arena.create(MIB)
    right, end = put_rows(arena, torch.randn(16, 64), 0)
    handle = {
        "stale": Handle(right.generation - 1, right.offset, right.nbytes),
        "forged": Handle(right.generation, end, right.nbytes),
        "beyond": Handle(right.generation, 1 << 40, right.nbytes),
        "misshapen": Handle(right.generation, right.offset, 64),
    }[wrong]
    driver = Driver(make_runner(directory, arena))
    for slot, embed in enumerate((right, handle, right)):
        prompt, spans = prompt_with_images([5, *[IMAGE] * 16, 6], [embed], image_id=IMAGE, num_tokens=16)
        driver.add(slot, prompt, spans=spans)
    healthy = [driver.running[0], driver.running[2]]
    driver.run(5, may_fail={1})
    assert {slot: failure.media_lost for slot, failure in driver.failures.items()} == {1: True}
    assert healthy[0].output == healthy[1].output
    arena.close()


def test_d5_only_as_much_as_needed_is_evicted_and_the_most_used_last(cache: Cache) -> None:
    names = [f"old {number}" for number in range(2 * NUM_ITEMS - 1)]
    cache.cached(*names)
    for _ in range(100):
        cache.write("hot", names[0])
        cache.release("hot")
    for number in range(3):
        cache.cached(f"new {number}")
    assert cache.table.counters["mm_cache_evictions", "embed"] <= 6, "three pairs of extents replace embeddings"
    (record,) = cache.table.alloc(Lease("http", "look"), [alloc_item(names[0])]).records
    assert record.state == "hit"


class _CountingArena(Arena):
    reads = 0

    def check(self, handle: Handle) -> None:
        self.reads += 1
        super().check(handle)


def test_d6_a_rank_reads_no_image_that_the_prefix_cache_covers(tmp_path: Path) -> None:
    directory, made = make_llava(tmp_path), Arena.create(MIB)
    arena = _CountingArena.attach(made.fd)
    handle, _ = put_rows(arena, torch.randn(16, 64), 0)
    prompt, spans = prompt_with_images([*[IMAGE] * 16, *range(5, 25)], [handle], image_id=IMAGE, num_tokens=16)
    driver = Driver(make_runner(directory, arena))
    first = driver.add(0, prompt, spans=spans)
    driver.step()
    after_prefill = arena.reads
    assert after_prefill > 0
    second = driver.add(1, prompt, spans=spans, shared=tuple(first.blocks[:1]))
    driver.run(5)
    assert arena.reads == after_prefill
    assert first.output[:5] == second.output[:5]
    made.close()


OWNER = """
import sys
from mmserve.ipc.arena import Arena
from mmserve.messages.media import Handle
arena = Arena.create(64 << 20)
arena.open(Handle(1, 0, 32 << 20))
arena.write(Handle(1, 0, 32 << 20), bytes(32 << 20))
print("written", flush=True)
sys.stdin.read()
"""


def _shared_memory() -> set[Path]:
    return set(Path("/dev/shm").iterdir())


def test_d7_arenas_of_killed_owners_are_freed_and_two_do_not_collide() -> None:
    before = _shared_memory()
    owners = [
        subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)
    ]
    for owner in owners:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"written\n"
    assert not any("mmserve" in path.name for path in _shared_memory() - before), "the memory file has no name"
    for owner in owners:
        owner.send_signal(signal.SIGKILL)
        owner.communicate()
    assert not any("mmserve" in path.name for path in _shared_memory() - before)


SMALL_SHM = """
mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$0" -c '
from mmserve.ipc.arena import Arena
from mmserve.messages.media import Handle
import os
assert os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize == 1 << 20
arena = Arena.create(16 << 20)
handle = Handle(1, 0, 15 << 20)
arena.open(handle)
arena.write(handle, bytes(15 << 20))
print(len(arena.readable(handle)))
'
"""


def test_d8_a_small_dev_shm_does_not_matter() -> None:
    """Containers often have 64 MB of it. The arena is a memory file outside of /dev/shm."""
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", SMALL_SHM, sys.executable],
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip("this machine does not allow user namespaces")
    assert done.stdout == f"{15 << 20}\n", done.stderr


def test_d8_missing_memory_is_an_error_at_start_instead_of_a_bus_error() -> None:
    with pytest.raises(StartupError, match="--mm-cache-gb"):
        arena_of(1 << 60).__enter__()


def test_d8_a_limit_on_file_sizes_is_named_in_the_error() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 * MIB, hard))
    try:
        with pytest.raises(StartupError, match="ulimit -f"):
            arena_of(16 * MIB).__enter__()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_an_image_lost_in_a_restart_can_be_allocated_and_written_again(cache: Cache) -> None:
    (old,) = cache.write("r", "cat")
    cache.encode((old,))
    cache.table = new_table(cache.arena)
    with pytest.raises(StaleHandle):
        cache.rows(old)
    (new,) = cache.write("r", "cat")
    cache.encode((new,))
    assert cache.rows(new) == content(f"rows of {new.item_id}")
