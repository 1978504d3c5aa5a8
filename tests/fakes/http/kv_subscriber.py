"""A subscriber of KV events: decodes them as vLLM declares them, and keeps what the server is said to hold."""

from __future__ import annotations

from typing import Any

import msgspec
import zmq

from mmserve.ipc.events.numbers import number_bytes


class StoredEvent(msgspec.Struct, tag="BlockStored"):
    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None


class RemovedEvent(msgspec.Struct, tag="BlockRemoved"):
    block_hashes: list[int | bytes]
    medium: str | None
    group_idx: int | None = None


class ClearedEvent(msgspec.Struct, tag="AllBlocksCleared"):
    pass


class Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[StoredEvent | RemovedEvent | ClearedEvent]
    data_parallel_rank: int | None = None


class Holdings:
    """Names of the blocks that events have announced and not removed."""

    def __init__(self) -> None:
        self.blocks: set[int | bytes] = set()

    def apply(self, batch: Batch) -> None:
        for event in batch.events:
            match event:
                case StoredEvent(block_hashes=hashes, parent_block_hash=parent, token_ids=tokens, block_size=size):
                    assert parent is None or parent in self.blocks, "a block was announced before its parent"
                    assert len(tokens) == size * len(hashes)
                    assert max(tokens) < 1 << 32
                    assert event.extra_keys is None or len(event.extra_keys) == len(hashes)
                    self.blocks.update(hashes)
                case RemovedEvent(block_hashes=hashes):
                    assert self.blocks.issuperset(hashes), "a block was removed that is not there"
                    self.blocks.difference_update(hashes)
                case ClearedEvent():
                    self.blocks.clear()


def decode(payload: bytes) -> Batch:
    return msgspec.msgpack.decode(payload, type=Batch)


def replay(endpoint: str, first: int) -> list[tuple[bytes, int, bytes]]:
    """Topic, number and payload of each batch from number ``first`` on, as llm-d asks for them."""
    dealer = zmq.Context.instance().socket(zmq.DEALER)
    dealer.setsockopt(zmq.RCVTIMEO, 20_000)
    try:
        dealer.connect(endpoint)
        dealer.send_multipart((b"", number_bytes(first)))
        found = []
        while True:
            empty, topic, sequence, payload = dealer.recv_multipart()
            assert empty == b""
            if (number := int.from_bytes(sequence, "big", signed=True)) == -1:
                assert payload == b""
                return found
            found.append((topic, number, payload))
    finally:
        dealer.close(linger=0)
