"""Names of images: bounded, rebound by the last word, and of use only while the image is stored."""

from __future__ import annotations

from mmserve.cache_server.entries import Lease
from mmserve.cache_server.image_names import ImageNames
from mmserve.cache_server.run import new_table
from mmserve.cache_server.shared_table import SharedMediaTable
from mmserve.messages.cache import NamedImage
from tests.fakes.pictures.cache import alloc_item, arena_for


def image(name: str) -> NamedImage:
    return NamedImage(alloc_item(name), 40, 30, 0)


def test_the_name_used_least_recently_is_forgotten_first() -> None:
    names = ImageNames(max_names=2)
    names.set(b"cat", image("cat"))
    names.set(b"dog", image("dog"))
    assert names.get(b"cat") == image("cat")
    names.set(b"cow", image("cow"))
    assert [names.get(name) for name in (b"cat", b"dog", b"cow")] == [image("cat"), None, image("cow")]
    assert len(names) == 2


def test_a_name_stands_for_the_last_image_it_was_given_to() -> None:
    names = ImageNames()
    names.set(b"cat", image("cat"))
    names.set(b"cat", image("dog"))
    assert names.get(b"cat") == image("dog")


def test_a_name_is_of_use_while_its_image_is_stored() -> None:
    arena = arena_for(1)
    table = SharedMediaTable(new_table(arena))
    table.connect("http")
    lease = Lease("http", "r")
    (record,) = table.alloc(lease, (alloc_item("cat"),), 0.0).result().records
    table.set_names((b"cat",), (image("cat"),))
    assert table.get_names((b"cat", b"dog")) == (image("cat"), None)
    table.set_data(lease, (record.item_id,), False)
    assert table.get_names((b"cat",)) == (None,), "nobody writes it"
    assert table.get_data(lease, (record.item_id,), 0.0).result() == ("write",)
    table.set_data(lease, (record.item_id,), True)
    assert table.get_names((b"cat",)) == (image("cat"),)
    table.release(lease)
    assert table.get_names((b"cat",)) == (image("cat"),), "cached, not leased"
    table.alloc(Lease("http", "other"), (alloc_item("dog"),), 0.0)
    assert table.get_names((b"cat",)) == (None,), "evicted"
    arena.close()
