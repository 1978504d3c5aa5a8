"""A visual server on another card than 0 makes it its threads' own before anything is put on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mmserve.ipc.arena import Arena
from mmserve.model_backend.platforms.reference import TorchPlatform
from mmserve.visualserver import run
from tests.fakes.media import fake_process, model_spec, write_preprocessor


class Card(TorchPlatform):
    """Notes in which order it is used."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"), torch.float32)
        self.events: list[str] = []

    def use_in_thread(self) -> None:
        self.events.append("used")


def test_the_card_is_that_of_the_threads_that_load_and_call_the_tower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arena, card, asked = Arena.create(1 << 14), Card(), []

    def platform_for(*_: Any, **options: Any) -> Card:
        asked.append(options["cards"])
        return card

    def load_tower(*_: Any) -> Any:
        card.events.append("loaded")
        return lambda pictures: []

    def serve(process: Any, tower: Any, counter: Any, begin: Any) -> None:
        card.events.append("served")
        begin()

    for function in (platform_for, load_tower, serve):
        monkeypatch.setattr(run, function.__name__, function)
    model = model_spec(write_preprocessor(tmp_path), hidden_size=4)
    run.run(fake_process("visualserver", tmp_path, arena, model, visual_devices=(1,)))
    assert asked == [(1,)]
    assert card.events == ["used", "loaded", "served", "used"]
    arena.close()
