"""Which decoded batches enter the encoder, and how many images may be decoded beside those that wait."""

from __future__ import annotations

from mmserve.messages.media import Handle
from mmserve.visualserver.batches.encoder_room import EncoderRoom
from mmserve.visualserver.batches.image_decode import DecodedBatch
from mmserve.visualserver.images import Image
from mmserve.visualserver.queue.image_tasks import ImageBatch


def _decoded(*item_ids: int) -> tuple[DecodedBatch, ImageBatch]:
    images = [Image(item_id, Handle(1, 0, 1), Handle(1, 64, 1)) for item_id in item_ids]
    return DecodedBatch(images), ImageBatch(tuple(images), (), others_waiting=False)


def _take(room: EncoderRoom) -> list[int]:
    taken = room.take()
    return [] if taken is None else [image.item_id for image in taken[0].images]


def test_batches_enter_in_order_and_only_as_a_whole() -> None:
    room = EncoderRoom(4)
    for item_ids in ((1, 2, 3), (4, 5), (6,)):
        room.add(*_decoded(*item_ids))
    assert _take(room) == [1, 2, 3]
    assert _take(room) == [], "4 and 5 do not fit, and 6 does not overtake them"
    room.release(3)
    assert [_take(room), _take(room), _take(room)] == [[4, 5], [6], []]
    assert not room.has_waiting


def test_as_many_images_are_decoded_as_the_encoder_takes_next() -> None:
    room = EncoderRoom(4)
    assert room.to_decode == 4
    room.add(*_decoded(1))
    assert room.to_decode == 3
    assert _take(room) == [1]
    assert room.to_decode == 4, "images of the encoder do not count"
