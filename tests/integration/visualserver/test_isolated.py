"""A picture that kills its decoder kills a child process only, and is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mmserve.messages.media import DEFAULT_PROCESSING, Processing
from mmserve.processors.image_processors import image_processors_for
from mmserve.processors.isolated import IsolatedDecoder
from mmserve.runtime.errors import MediaError
from tests.fakes.pictures.deadly_pictures import deadly_png, make_deadly
from tests.fakes.pictures.media import llava_processor, model_spec, png, truncated, vision_spec, write_preprocessor


@pytest.fixture
def decoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[IsolatedDecoder]:
    make_deadly(monkeypatch)
    decoder = IsolatedDecoder(model_spec(write_preprocessor(tmp_path)), deadline_s=1.0)
    yield decoder
    decoder.close()


def test_a_child_decodes_alike_and_survives_broken_pictures(tmp_path: Path, decoder: IsolatedDecoder) -> None:
    processor = llava_processor(write_preprocessor(tmp_path))
    for seed in range(2):
        for there, here in zip(
            decoder.views(memoryview(png(seed)), DEFAULT_PROCESSING), processor.views(png(seed)), strict=True
        ):
            assert np.array_equal(there, here)
        for data in (truncated(png(seed)), b"", b"no picture"):
            with pytest.raises(MediaError):
                decoder.views(data, DEFAULT_PROCESSING)
    with pytest.raises(MediaError, match="more memory"):
        decoder.views(deadly_png("memory"), DEFAULT_PROCESSING)
    assert decoder.num_killed == 0


def test_a_child_processes_a_picture_as_its_request_wants(tmp_path: Path, decoder: IsolatedDecoder) -> None:
    processors = image_processors_for(model_spec(write_preprocessor(tmp_path)))
    assert processors is not None
    squashed = Processing('{"do_center_crop":false,"size":{"height":28,"width":28}}')
    there = decoder.views(png(), squashed)
    assert np.array_equal(there.pixels, processors.of(squashed).views(png()).pixels)
    assert not np.array_equal(there.pixels, processors.server.views(png()).pixels)


def test_deadly_pictures_are_refused_and_the_next_one_is_decoded(decoder: IsolatedDecoder) -> None:
    causes = {"segfault": "SIGSEGV", "exit": "exit code 3", "loop": "longer than 1 s"}
    for killed, (what, said) in enumerate(causes.items()):
        with pytest.raises(MediaError, match=said):
            decoder.views(deadly_png(what), DEFAULT_PROCESSING)
        assert decoder.num_killed == killed + 1
    assert decoder.views(png(), DEFAULT_PROCESSING).pixels.shape == (1, 28, 28, 3)
    decoder.end_idle()
    assert decoder.views(png(), DEFAULT_PROCESSING).pixels.shape == (1, 28, 28, 3)


def test_a_child_that_does_not_start_is_no_fault_of_the_picture(tmp_path: Path) -> None:
    decoder = IsolatedDecoder(model_spec(write_preprocessor(tmp_path), vision=vision_spec(image_size=30)))
    with pytest.raises(RuntimeError, match="did not start"):
        decoder.views(png(), DEFAULT_PROCESSING)
    decoder.close()
