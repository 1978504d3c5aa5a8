"""A visual server's room stays its own after memory has run out, with stand-ins for a card's allocator."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmserve.model_backend.platforms.cuda.platform import CudaPlatform


class Allocator:
    """Keeps what is freed, until its cache is emptied. ``free_nbytes``: of the card."""

    def __init__(self) -> None:
        self.kept_nbytes, self.free_nbytes = 0, 1 << 40
        self.events: list[str] = []

    def empty_cache(self) -> None:
        self.events.append("empty")
        self.kept_nbytes = 0

    def empty(self, nbytes: int, **_: Any) -> torch.Tensor:
        if nbytes > self.free_nbytes:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.events.append("take")
        self.kept_nbytes = nbytes
        return torch.zeros(0)


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    made = Allocator()
    monkeypatch.setattr(torch.cuda, "empty_cache", made.empty_cache)
    monkeypatch.setattr(torch, "empty", made.empty)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: made.kept_nbytes)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (made.free_nbytes, 1 << 40))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda part, device: None)
    return made


def test_after_memory_has_run_out_the_room_is_taken_again_in_one_piece(
    allocator: Allocator, caplog: pytest.LogCaptureFixture
) -> None:
    platform = CudaPlatform(torch.device("cpu"), torch.float32)
    platform.release_cached_memory()
    assert allocator.events == ["empty"], "no visual server's"
    vision = SimpleNamespace(patches_per_row=4, hidden_size=64, intermediate_size=128)
    made: Any = SimpleNamespace(model=SimpleNamespace(vision=vision), max_image_rows=100)
    platform.prefault_for_images(made, 4)
    room_nbytes = allocator.kept_nbytes
    assert room_nbytes > 0
    platform.release_cached_memory()
    assert allocator.events == ["empty", "take", "empty", "take"]
    assert allocator.kept_nbytes == room_nbytes
    allocator.free_nbytes = 0
    platform.release_cached_memory()
    assert "could not be taken again" in caplog.text
