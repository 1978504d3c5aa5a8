"""A visual server on another card than 0 makes it its threads' own before anything is put on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mmserve.ipc.arena import Arena
from mmserve.model_backend.platforms.reference import TorchPlatform
from mmserve.runtime.step_times import StepTimes
from mmserve.visualserver import run
from mmserve.visualserver.batches.encode import EncoderDevice
from mmserve.visualserver.batches.towers import encoder_device, slices_of
from tests.fakes.pictures.media import fake_process, model_spec, write_preprocessor


class Card(TorchPlatform):
    """Notes in which order it is used."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"), torch.float32)
        self.events: list[str] = []

    @property
    def num_devices(self) -> int:
        return 2

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

    def serve(process: Any, tower: Any, counter: Any, device: EncoderDevice) -> None:
        card.events.append("served")
        device.begin()

    for function in (platform_for, load_tower, serve):
        monkeypatch.setattr(run, function.__name__, function)
    model = model_spec(write_preprocessor(tmp_path), hidden_size=4)
    run.run(fake_process("visualserver", tmp_path, arena, model, visual_devices=(1,)))
    assert asked == [(1,)]
    assert card.events == ["used", "loaded", "served", "used"]
    arena.close()


@pytest.mark.parametrize(
    ("card", "options", "bounded"),
    [
        (0, {}, True),
        (1, {}, False),
        (1, {"tp": 2}, True),
        (0, {"visual_share": 1.0}, False),
        (None, {}, False),
    ],
    ids=["the rank's", "another", "of two ranks", "no bound wanted", "no card"],
)
def test_a_tower_on_a_ranks_card_is_bounded(
    tmp_path: Path, card: int | None, options: dict[str, Any], bounded: bool
) -> None:
    """While the rank computes, a call of the tower has one picture at first, and else all of them."""
    arena, platform = Arena.create(1 << 14), Card()
    platform.device = torch.device("cpu") if card is None else torch.device("meta", card)
    model = model_spec(write_preprocessor(tmp_path), hidden_size=4)
    process = fake_process("visualserver", tmp_path, arena, model, **options)
    slices = slices_of(torch.nn.Identity(), process, platform)  # type: ignore[arg-type]
    device = encoder_device(platform, arena, slices)
    assert device.num_pictures([5, 5, 5]) == 3
    rank = min(card or 0, process.deployment.config.tp - 1)
    StepTimes(process.endpoints.step_times(), 2).write(rank, 1, 0.006)
    assert device.num_pictures([5, 5, 5]) == (1 if bounded else 3)
    arena.close()
