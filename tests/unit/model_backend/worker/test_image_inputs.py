"""Embedding rows are read in the arena, only those of the chunk; a handle that becomes stale fails its own step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from mmserve.ipc.arena import ALIGNMENT, Arena
from mmserve.messages.media import Handle, MediaSpan
from mmserve.messages.step import NewSequence, SequenceStep, StepPlan
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.platforms.cuda.pinned import PinnedArena
from mmserve.model_backend.platforms.device import platform_for
from mmserve.model_backend.worker.image_inputs import ImageEmbeddingWriter
from mmserve.model_backend.worker.input_batch import InputBatch
from tests.fakes.models.checkpoints import IMAGE, make_llava
from tests.fakes.pictures.embeddings import prompt_with_images, put_rows
from tests.fakes.ranks.engine import GREEDY, Driver, make_runner

HIDDEN = 64
CPU = torch.device("cpu")


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena.create(1 << 18)
    yield made
    made.close()


def span_of(handle: Handle) -> MediaSpan:
    return MediaSpan(start=1, num_tokens=16, item_id=1, data=None, embed=handle, media_index=0)


def test_rows_are_views_of_the_arena(arena: Arena) -> None:
    rows = torch.randn(16, HIDDEN)
    handle, _ = put_rows(arena, rows, 4096)
    read = ImageEmbeddingWriter(arena, HIDDEN, TpGroup(), platform_for("cpu", "float32"))._rows(span_of(handle), 3, 7)
    assert torch.equal(read.view(4, HIDDEN), rows[3:7])
    mapping = torch.frombuffer(arena.mapping(), dtype=torch.uint8)
    assert read.data_ptr() == mapping.data_ptr() + 4096 + ALIGNMENT + 3 * HIDDEN * 4


def test_only_rows_of_the_chunk_are_read(tmp_path: Path, arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of tokens that are in the prefix cache are not read."""
    handle, _ = put_rows(arena, torch.randn(16, HIDDEN), 0)
    prompt, spans = prompt_with_images([5, *[IMAGE] * 16, 6], [handle], image_id=IMAGE, num_tokens=16)
    read: list[tuple[int, int]] = []
    rows = ImageEmbeddingWriter._rows

    def note(writer: ImageEmbeddingWriter, span: MediaSpan, first: int, end: int) -> torch.Tensor:
        read.append((first, end))
        return rows(writer, span, first, end)

    monkeypatch.setattr(ImageEmbeddingWriter, "_rows", note)
    driver = Driver(make_runner(make_llava(tmp_path), arena), chunk=10)
    driver.add(0, prompt, spans=spans)
    driver.run(3)
    assert read == [(0, 9), (9, 16)], "rows of the first chunk, of the second, and none for later tokens"


def test_rows_of_several_streams_are_split(arena: Arena) -> None:
    """Two sequences, each with a chunk that begins and ends within its image."""
    streams, tokens = 3, 16
    rows = torch.randn(2, tokens, streams, HIDDEN)
    first, offset = put_rows(arena, rows[0].flatten(1), 0)
    second, _ = put_rows(arena, rows[1].flatten(1), offset)
    input_batch = InputBatch(3, 32, 9, 16, 100)
    spans = ((span_of(first),), (span_of(second),), ())
    sequences = [
        NewSequence(slot=slot, token_ids=bytes(8 * 20), num_prompt_tokens=20, spans=each, sampling=GREEDY)
        for slot, each in enumerate(spans)
    ]
    input_batch.apply(StepPlan(step_id=1, new=tuple(sequences)))
    steps = [SequenceStep(2, 0, 1, (), True), SequenceStep(0, 3, 5, (), False), SequenceStep(1, 0, 9, (), False)]
    batch = SimpleNamespace(steps=steps, first_rows=[0, 1, 6])
    hidden = torch.zeros(15, HIDDEN)
    writer = ImageEmbeddingWriter(arena, HIDDEN, TpGroup(), platform_for("cpu", "float32"), streams)
    failures, deepstack = writer.scatter(input_batch, batch, hidden)  # type: ignore[arg-type]
    read = torch.cat([rows[0, 2:7], rows[1, :8]])
    assert not failures
    assert deepstack is not None
    assert deepstack.rows.tolist() == [*range(1, 6), *range(7, 15)]
    assert torch.equal(deepstack.values, read[:, 1:].transpose(0, 1))
    assert torch.equal(hidden[deepstack.rows], read[:, 0])
    assert not hidden[[0, 6]].any()
    rows[1, 3, 2, 5] = float("nan")
    put_rows(arena, rows[1].flatten(1), offset)
    failures, _ = writer.scatter(input_batch, batch, hidden)  # type: ignore[arg-type]
    assert [(failure.slot, failure.message) for failure in failures] == [(1, "an image's embedding is not finite")]


class _Restarting(Arena):
    """A cache server that restarts while rows are read: after the first check, or after the view is made."""

    at = ""

    def check(self, handle: Handle) -> None:
        super().check(handle)
        self._pass("checked")

    def view(self, handle: Handle) -> memoryview:
        view = super().view(handle)
        self._pass("found")
        return view

    def _pass(self, point: str) -> None:
        if self.at == point:
            self.at = ""
            self.begin_epoch(1 << 61)


@pytest.mark.parametrize("at", ["checked", "found"])
def test_a_handle_that_becomes_stale_during_the_copy_fails_only_its_sequence(
    tmp_path: Path, arena: Arena, at: str
) -> None:
    directory = make_llava(tmp_path)
    alone = Driver(make_runner(directory))
    expected = alone.add(0, list(range(10, 40)))
    alone.run(4)
    handle, _ = put_rows(arena, torch.randn(16, HIDDEN), 0)
    prompt, spans = prompt_with_images([5, *[IMAGE] * 16, 6], [handle], image_id=IMAGE, num_tokens=16)
    restarting = _Restarting.attach(arena.fd)
    restarting.at = at
    driver = Driver(make_runner(directory, restarting))
    driver.add(1, prompt, spans=spans)
    healthy = driver.add(0, list(range(10, 40)))
    assert [failure.media_lost for failure in driver.step().failures] == [True]
    driver.run(4)
    assert healthy.output == expected.output


def test_a_gpu_rank_pins_the_whole_arena_once_and_keeps_its_mapping(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = Arena.create(1 << 18)
    registered: list[tuple[int, int]] = []

    def register(address: int, nbytes: int, flags: int) -> int:
        registered.append((address, nbytes))
        return 0

    def unregister(address: int) -> None:
        registered[:] = [each for each in registered if each[0] != address]

    driver = SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=unregister)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    pinned = PinnedArena(arena, CPU)
    mapping = torch.frombuffer(arena.mapping(), dtype=torch.uint8)
    assert registered == [(mapping.data_ptr(), mapping.numel())]
    assert mapping.numel() >= arena.nbytes
    del mapping
    arena.close()
    with pytest.raises(BufferError):  # it is mapped as long as it is registered
        arena._map.close()
    del pinned
    assert registered == []
    arena._map.close()


class _Refusing(TorchFunctionMode):
    """A CUDA runtime that refuses to register memory.

    As in the real one, the error is kept until the next launch raises it. Every torch call here counts as a launch.
    """

    last_error = 0

    def cudaHostRegister(self, *_: int) -> int:
        self.last_error = 2
        return self.last_error

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        error, self.last_error = self.last_error, 0
        if error:
            raise RuntimeError(f"CUDA error {error}")
        return func(*args, **(kwargs or {}))


def test_a_refused_registration_is_a_warning_and_later_launches_work(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with _Refusing() as runtime:
        monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
        PinnedArena(arena, CPU)
        assert torch.ones(2).tolist() == [1.0, 1.0]
    assert "error 2" in caplog.text
