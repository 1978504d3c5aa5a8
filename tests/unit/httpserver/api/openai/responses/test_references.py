"""References to stored items: which inputs have them, and how much text they may stand for."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from mmserve.httpserver.api.openai.responses.request.references import references_in, stored_items
from mmserve.httpserver.response_store.database import StoredItem, StoredOutput
from mmserve.httpserver.response_store.runs import BackgroundRuns
from mmserve.httpserver.response_store.store import ResponseStore
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.runtime.errors import ContextLengthExceeded, ItemNotFound

PICTURE = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 100_000}


def test_an_item_with_an_id_alone_is_a_reference_as_well() -> None:
    items = [
        {"role": "user", "content": "x", "id": "a"},
        {"id": "b"},
        {"type": "item_reference", "id": "c"},
        {"type": "message", "id": "d"},
        5,
    ]
    assert references_in(items) == {1: "b", 2: "c"}
    assert references_in("text") == {}


def test_the_text_of_all_references_is_limited_and_their_images_are_not_text(tmp_path: Path) -> None:
    async def test() -> None:
        store = ResponseStore(tmp_path / "store", 10**8, 10**6, BackgroundRuns(Endpoints(tmp_path), 0))
        contents = {"text": "A" * 100_000, "picture": [PICTURE]}
        items = [StoredItem(id, json.dumps({"id": id, "content": text}).encode()) for id, text in contents.items()]
        assert await store.begin("ann", "r", "1", None, lambda: items, 1)
        assert await store.finish("r", "1", StoredOutput("completed", b"{}"))
        for id, times in (("text", 5), ("picture", 100)):
            found = await stored_items(dict.fromkeys(range(times), id), store, "ann", 512)
            assert {item["id"] for item in found.values()} == {id}
            assert len(found) == times
        with pytest.raises(ContextLengthExceeded):
            await stored_items(dict.fromkeys(range(6), "text"), store, "ann", 512)
        with pytest.raises(ItemNotFound) as missing:
            await stored_items({3: "text"}, store, "bob", 512)
        assert missing.value.param == "input[3].id"
        await store.aclose()

    asyncio.run(test())
