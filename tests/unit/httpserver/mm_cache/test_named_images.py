"""Images by name, on both allocation paths over the real table: hits, misses, rebinding, and whose name it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pybase64
import pytest

from mmserve.cache_server.entries import Lease
from mmserve.httpserver.call import AllocVersion, GenerateCall, MediaRef
from mmserve.httpserver.mm_cache.named_images import name_of, with_named
from mmserve.ipc.arena import Arena, extent_nbytes
from mmserve.runtime.errors import InvalidRequest, MediaNotStored
from tests.fakes.models.chat_models import deployment_of, write_chat_model
from tests.fakes.pictures.alloc_paths import ALLOC_VERSIONS, BothAllocPaths
from tests.fakes.pictures.cache import alloc_item
from tests.fakes.pictures.media import png
from tests.fakes.ranks.calls import generate_call

CAT, DOG = png(1), png(2, 30, 40)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("llava"))


@pytest.fixture
def both(model: Path) -> Iterator[BothAllocPaths]:
    arena = Arena.create(1 << 20)
    yield BothAllocPaths(deployment_of(model), arena)
    arena.close()


def sent(data: bytes, uuid: str, at: str = "given") -> MediaRef:
    return MediaRef(f"data:image/png;base64,{pybase64.b64encode_as_string(data)}", at, uuid=uuid)


def named(uuid: str, at: str = "named") -> MediaRef:
    return MediaRef("", at, uuid=uuid)


class Client:
    """Sends requests on one path, for one API key."""

    def __init__(self, both: BothAllocPaths, version: AllocVersion, owner: str = "", salt: str = "") -> None:
        self._both, self._path, self._owner, self._salt = both, both.paths[version], owner, salt
        self._count = 0
        self.image_options = ""

    async def ask(self, *refs: MediaRef) -> list[bytes]:
        """The bytes that the leased images have in the arena."""
        self._count += 1
        call = generate_call(media=refs, owner=self._owner, cache_salt=self._salt, image_options=self.image_options)
        read = await self._path.media.read([ref for ref in refs if not ref.is_named], self._salt, call.processing)
        items = await with_named(call, read, self._path.leases)
        async with self._path.leases.hold(f"{self._owner}/{self._salt}/{self._count}", items) as leased:
            return self._both.bytes_held(leased)


@pytest.mark.parametrize("version", ALLOC_VERSIONS)
def test_a_name_stands_for_the_image_it_was_sent_with(both: BothAllocPaths, version: AllocVersion) -> None:
    client, other_path = Client(both, version), Client(both, "v1" if version == "v2" else "v2")

    async def scenario() -> None:
        assert await client.ask(sent(CAT, "pet")) == [CAT]
        assert await client.ask(named("pet"), sent(DOG, ""), named("pet")) == [CAT, DOG, CAT]
        assert await other_path.ask(named("pet")) == [CAT], "names are the cache server's, not a worker's"
        assert await client.ask(sent(DOG, "pet")) == [DOG], "the data wins"
        assert await client.ask(named("pet")) == [DOG], "and the name stands for it from then on"

    both.run(scenario)
    assert both.is_clean()


def test_a_request_may_name_an_image_that_it_brings(both: BothAllocPaths) -> None:
    client = Client(both, "v2")

    async def scenario() -> None:
        assert await client.ask(named("pet"), sent(CAT, "pet"), sent(CAT, "pet")) == [CAT, CAT, CAT]
        with pytest.raises(InvalidRequest) as refused:
            await client.ask(sent(CAT, "a"), sent(DOG, "a", "second"))
        assert refused.value.param == "second"

    both.run(scenario)


@pytest.mark.parametrize("version", ALLOC_VERSIONS)
def test_nobody_else_has_the_name(both: BothAllocPaths, version: AllocVersion) -> None:
    async def refused(client: Client) -> bool:
        with pytest.raises(MediaNotStored) as error:
            await client.ask(sent(DOG, ""), named("pet"))
        return error.value.param == "named" and error.value.status == 400

    async def scenario() -> None:
        await Client(both, version, "ann", "s").ask(sent(CAT, "pet"))
        assert await Client(both, version, "ann", "s").ask(named("pet")) == [CAT]
        for owner, salt in (("bob", "s"), ("ann", ""), ("", ""), ("ann", "t"), ("anns", "")):
            assert await refused(Client(both, version, owner, salt))

    both.run(scenario)
    assert both.is_clean()


@pytest.mark.parametrize("version", ALLOC_VERSIONS)
def test_a_name_stands_for_the_image_with_the_settings_it_was_sent_with(
    both: BothAllocPaths, version: AllocVersion
) -> None:
    """Its rows in the arena are those of these settings."""
    plain, squashed = Client(both, version), Client(both, version)
    squashed.image_options = '{"do_center_crop":false,"size":{"height":28,"width":28}}'

    async def scenario() -> None:
        await plain.ask(sent(CAT, "pet"))
        with pytest.raises(MediaNotStored):
            await squashed.ask(named("pet"))
        await squashed.ask(sent(CAT, "pet"))
        assert await squashed.ask(named("pet"), sent(DOG, "")) == [CAT, DOG]
        assert await plain.ask(named("pet"), sent(DOG, "")) == [CAT, DOG]

    both.run(scenario)
    assert both.is_clean()


@pytest.mark.parametrize("version", ALLOC_VERSIONS)
def test_an_image_that_was_evicted_must_be_sent_again(both: BothAllocPaths, version: AllocVersion) -> None:
    client = Client(both, version)

    async def scenario() -> None:
        await client.ask(sent(CAT, "pet"))
        evict_all(both)
        with pytest.raises(MediaNotStored):
            await client.ask(named("pet"))
        await client.ask(sent(CAT, ""))
        assert await client.ask(named("pet")) == [CAT], "the same picture is back"

    both.run(scenario)
    assert both.is_clean()


@pytest.mark.parametrize("version", ALLOC_VERSIONS)
def test_an_image_evicted_between_look_up_and_lease_is_never_another_one(
    both: BothAllocPaths, version: AllocVersion
) -> None:
    client = Client(both, version)

    async def scenario() -> None:
        await client.ask(sent(CAT, "pet"))
        evicting = both.pools[version]

        def evict(name: str) -> None:
            if name == "alloc":
                evicting.at_call = lambda name: None
                evict_all(both)

        evicting.at_call = evict
        with pytest.raises(MediaNotStored) as refused:
            await client.ask(named("pet"))
        assert refused.value.param == "named"

    both.run(scenario)
    assert both.is_clean()


def evict_all(both: BothAllocPaths) -> None:
    """Lease the whole arena for a moment."""
    half = (both.arena.nbytes - 4 * extent_nbytes(0)) // 2
    both.table.connect("filler")
    filler = alloc_item("filler", data_nbytes=half, embed_nbytes=half)
    assert not both.table.alloc(Lease("filler", "all"), (filler,), 0.0).result().refused
    both.table.disconnect("filler")


def test_names_are_hashes_of_all_that_they_depend_on() -> None:
    def name(owner: str, salt: str, uuid: str, settings: bytes = b"s") -> bytes:
        call: GenerateCall = generate_call(owner=owner, cache_salt=salt)
        return name_of(call, settings, uuid)

    names = [name("a", "b", "c"), name("ab", "", "c"), name("a", "bc", ""), name("", "ab", "c"), name("a", "b", "cc")]
    names.append(name("a", "b", "c", b"t"))
    assert len(set(names)) == len(names)
    assert {len(one) for one in names} == {32}
