"""Decodes pictures in a child process with limits of memory and time, which a picture may end without harm to others.

``IsolatedDecoder`` is the parent's side. The child is this module's ``main``: it gets the model's spec, then pictures.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import msgspec
import numpy as np

from mmserve.checkpoint.spec import ModelSpec
from mmserve.messages.media import Processing
from mmserve.processors.image_files.picture import header
from mmserve.processors.image_processors import image_processors_for
from mmserve.processors.interface import Views
from mmserve.runtime.errors import MediaError
from mmserve.runtime.isolation.killable import ChildDied, KillableChild
from mmserve.runtime.isolation.serving import Answer, limit_memory, serve, used_address_space
from mmserve.runtime.logs.exceptions import traceback_of

DEADLINE_S = 20.0
"""For one picture. Less than the default of --stuck-timeout, so that the parent is not taken for stuck meanwhile."""
_SPARE_NBYTES = 256 << 20
"""Address space beyond the estimate: libraries, thread stacks, and what the allocator reserves."""
_VIEWS, _MEDIA_ERROR, _FAILED = b"V", b"E", b"F"
_LENGTH_NBYTES = 4
_MAX_PIXELS = 1 << 40
"""The HTTP worker has checked the real limit."""
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
logger = logging.getLogger(__name__)


class IsolatedDecoder:
    """A child process, started when it is needed and again after its death. Thread-safe: one picture at a time."""

    def __init__(self, model: ModelSpec, *, deadline_s: float = DEADLINE_S) -> None:
        self._deadline_s = deadline_s
        self._child = KillableChild(
            __name__, msgspec.msgpack.encode(model), deadline_s=deadline_s, environment=_ONE_THREAD
        )
        self.num_killed = 0
        """Pictures that ended the child."""

    def views(self, data: bytes | memoryview, processing: Processing) -> Views:
        """Like ``ImageProcessor.views``. Raises MediaError also for a picture that ends the child.

        Raises RuntimeError or OSError if the child cannot be started or fails for another reason.
        """
        try:
            answer = self._child.ask(_question(data, processing))
        except ChildDied as death:
            raise self._killed(death) from None
        kind, body = answer[:1], memoryview(answer)[1:]
        if kind == _MEDIA_ERROR:
            raise MediaError(str(body, "utf-8"))
        if kind == _FAILED:
            raise RuntimeError(f"the decoder process failed: {str(body, 'utf-8')}")
        return _unpacked(body)

    def end_idle(self) -> None:
        """End the child unless it decodes a picture now. Harmless without a child."""
        self._child.end_idle()

    def close(self) -> None:
        """Kill the child, also while it decodes: that picture fails."""
        self._child.close()

    def _killed(self, death: ChildDied) -> MediaError:
        self.num_killed += 1
        if death.took_too_long:
            return MediaError(f"the image cannot be decoded: it takes longer than {self._deadline_s:g} s")
        logger.error("a picture ended the process that decoded it (%s): it is refused", death)
        return MediaError(f"the image cannot be decoded: it ends its decoder ({death})")


def _set_up(model: bytes) -> Answer:
    processors = image_processors_for(msgspec.msgpack.decode(model, type=ModelSpec))
    assert processors is not None, "a text model has no pictures"

    def views(question: bytes) -> Views:
        processing, data = _asked(question)
        processor = processors.of(processing)
        found = header(data, _MAX_PIXELS)
        estimate = processor.decoded_nbytes(found.width, found.height, found.loading_nbytes)
        limit_memory(used_address_space() + estimate + _SPARE_NBYTES)
        return processor.views(data)

    return lambda question: _answer(views, question)


def _question(data: bytes | memoryview, processing: Processing) -> bytes:
    """The length of the encoded processing, itself, the picture."""
    encoded = msgspec.msgpack.encode(processing)
    return b"".join((len(encoded).to_bytes(_LENGTH_NBYTES, "big"), encoded, data))


def _asked(question: bytes) -> tuple[Processing, bytes]:
    start = _LENGTH_NBYTES + int.from_bytes(question[:_LENGTH_NBYTES], "big")
    return msgspec.msgpack.decode(question[_LENGTH_NBYTES:start], type=Processing), question[start:]


def _packed(views: Views) -> bytes:
    """The shapes of both arrays, the grids, the pixels."""
    shapes = msgspec.msgpack.encode([each.shape for each in (views.pixels, views.grids)])
    return b"".join((bytes([len(shapes)]), shapes, views.grids.data, views.pixels.data))


def _unpacked(packed: memoryview) -> Views:
    shapes_end = 1 + packed[0]
    pixels_shape, grids_shape = msgspec.msgpack.decode(packed[1:shapes_end], type=list[list[int]])
    grids = np.frombuffer(packed, np.int32, math.prod(grids_shape), shapes_end)
    pixels = np.frombuffer(packed, np.uint8, offset=shapes_end + grids.nbytes)
    return Views(pixels.reshape(pixels_shape).copy(), grids.reshape(grids_shape).copy())


def _answer(views: Callable[[bytes], Views], question: bytes) -> bytes:
    try:
        return _VIEWS + _packed(views(question))
    except MediaError as error:
        return _MEDIA_ERROR + error.message.encode()
    except MemoryError:
        return _MEDIA_ERROR + b"the image cannot be decoded: it takes more memory than its size explains"
    except Exception as error:  # noqa: BLE001 - the boundary of one picture, logged
        # Without its message, which may quote the picture: this child has no log levels.
        logger.error("a picture could not be decoded:\n%s", traceback_of(error))
        return _FAILED + f"{type(error).__name__}: {error}".encode()


if __name__ == "__main__":
    serve(_set_up)
