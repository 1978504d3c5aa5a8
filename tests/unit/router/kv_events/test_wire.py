"""The bytes of events, as subscribers of other projects read them."""

from __future__ import annotations

import msgspec

from mmserve.router.kv_events.wire import AllBlocksCleared, BlockRemoved, BlockStored, Event, encode

_EVENTS: list[Event] = [
    AllBlocksCleared(),
    BlockStored([1 << 63, 2], None, [3, 4], 1, None, "GPU", None, [(("aa", -3), "salt"), None]),
    BlockStored([5], 2, [6], 1, None, "GPU", None),
    BlockRemoved([2], "GPU"),
]


def test_maps_name_their_type_and_leave_out_what_is_not_said() -> None:
    ts, events, rank = msgspec.msgpack.decode(encode(_EVENTS, 12.5, "map"))
    assert (ts, rank) == (12.5, 0)
    assert events == [
        {"type": "AllBlocksCleared"},
        {
            "type": "BlockStored",
            "block_hashes": [1 << 63, 2],
            "parent_block_hash": None,
            "token_ids": [3, 4],
            "block_size": 1,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": [[["aa", -3], "salt"], None],
        },
        {
            "type": "BlockStored",
            "block_hashes": [5],
            "parent_block_hash": 2,
            "token_ids": [6],
            "block_size": 1,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
        },
        {"type": "BlockRemoved", "block_hashes": [2], "medium": "GPU"},
    ]


def test_arrays_have_the_fields_by_place() -> None:
    ts, events, rank = msgspec.msgpack.decode(encode(_EVENTS, 12.5, "array"))
    assert (ts, rank) == (12.5, 0)
    assert events == [
        ["AllBlocksCleared"],
        ["BlockStored", [1 << 63, 2], None, [3, 4], 1, None, "GPU", None, [[["aa", -3], "salt"], None]],
        ["BlockStored", [5], 2, [6], 1, None, "GPU", None, None],
        ["BlockRemoved", [2], "GPU"],
    ]
