"""Decodes pictures in a child process with limits of memory and time, which a picture may end without harm to others.

``IsolatedDecoder`` is the parent's side. The child is this module's ``main``: it reads the model's spec, then pictures,
from stdin, and answers each on stdout.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np

from mmserve.checkpoint.spec import ModelSpec
from mmserve.processors.clip_pixels import Pixels
from mmserve.processors.picture import header
from mmserve.processors.registry import processor_for
from mmserve.runtime.errors import MediaError
from mmserve.runtime.frames import read_frame, write_frame
from mmserve.runtime.logged_exceptions import traceback_of

DEADLINE_S = 20.0
"""For one picture. Less than the default of --stuck-timeout, so that the parent is not taken for stuck meanwhile."""
_SPARE_NBYTES = 256 << 20
"""Address space beyond the estimate: libraries, thread stacks, and what the allocator reserves."""
_SHAPE = struct.Struct("<3Q")
_READY, _PIXELS, _MEDIA_ERROR, _FAILED = b"R", b"P", b"E", b"F"
_MAX_PIXELS = 1 << 40
"""The HTTP worker has checked the real limit."""
logger = logging.getLogger(__name__)


class IsolatedDecoder:
    """A child process, started when it is needed and again after its death. Thread-safe: one picture at a time."""

    def __init__(self, model: ModelSpec, *, deadline_s: float = DEADLINE_S) -> None:
        self._model = model
        self._deadline_s = deadline_s
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self.num_killed = 0
        """Pictures that ended the child."""

    def pixels(self, data: bytes | memoryview) -> Pixels:
        """Like ``ImageProcessor.pixels``. Raises MediaError also for a picture that ends the child.

        Raises RuntimeError or OSError if the child cannot be started or fails for another reason.
        """
        with self._lock:
            child = self._child or self._start()
            assert child.stdin is not None
            assert child.stdout is not None
            try:
                write_frame(child.stdin, data)
                answer = read_frame(child.stdout)
            except (BrokenPipeError, EOFError):
                raise self._killed(child) from None
        kind, body = answer[:1], memoryview(answer)[1:]
        if kind == _MEDIA_ERROR:
            raise MediaError(str(body, "utf-8"))
        if kind == _FAILED:
            raise RuntimeError(f"the decoder process failed: {str(body, 'utf-8')}")
        return np.frombuffer(body[_SHAPE.size :], np.float32).reshape(_SHAPE.unpack_from(body)).copy()

    def end_idle(self) -> None:
        """End the child unless it decodes a picture now. Harmless without a child."""
        if self._child is not None and self._lock.acquire(blocking=False):
            try:
                if self._child is not None:
                    self._end(self._child)
            finally:
                self._lock.release()

    def close(self) -> None:
        """Kill the child, also while it decodes: that picture fails."""
        if (child := self._child) is not None:
            child.kill()
        self.end_idle()

    def _start(self) -> subprocess.Popen[bytes]:
        # As in the parent, the working directory is on the import path only if it was meant to be.
        command = [sys.executable, *(["-P"] if sys.flags.safe_path else []), "-m", __name__, str(self._deadline_s)]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        self._child = child
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            write_frame(child.stdin, msgspec.msgpack.encode(self._model))
            read_frame(child.stdout)
        except (BrokenPipeError, EOFError):
            self._end(child)
            raise RuntimeError(f"the decoder process did not start (exit code {child.returncode})") from None
        return child

    def _killed(self, child: subprocess.Popen[bytes]) -> MediaError:
        self._end(child)
        self.num_killed += 1
        code = child.returncode
        if code == -signal.SIGALRM:
            return MediaError(f"the image cannot be decoded: it takes longer than {self._deadline_s:g} s")
        cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        logger.error("a picture ended the process that decoded it (%s): it is refused", cause)
        return MediaError(f"the image cannot be decoded: it ends its decoder ({cause})")

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        self._child = None
        assert child.stdin is not None
        assert child.stdout is not None
        with suppress(BrokenPipeError):
            child.stdin.close()
        child.stdout.close()
        child.wait()


def main() -> None:
    """The child. Ends with its stdin, or by SIGALRM if a picture takes longer than the deadline in argv."""
    # The parent decides when it ends; its own signals reach the whole process group.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    deadline_s, requests, replies = float(sys.argv[1]), sys.stdin.buffer, sys.stdout.buffer
    processor = processor_for(msgspec.msgpack.decode(read_frame(requests), type=ModelSpec))
    assert processor is not None, "a text model has no pictures"

    def pixels(data: bytes) -> Pixels:
        found = header(data, _MAX_PIXELS)
        _limit_memory(processor.decoded_nbytes(found.width, found.height, found.loading_nbytes))
        return processor.pixels(data)

    write_frame(replies, _READY)
    with suppress(EOFError, BrokenPipeError):
        while True:
            data = read_frame(requests)
            signal.setitimer(signal.ITIMER_REAL, deadline_s)
            answer = _answer(pixels, data)
            signal.setitimer(signal.ITIMER_REAL, 0)
            write_frame(replies, answer)


def _answer(pixels: Callable[[bytes], Pixels], data: bytes) -> bytes:
    try:
        result = pixels(data)
        return b"".join((_PIXELS, _SHAPE.pack(*result.shape), result.data))
    except MediaError as error:
        return _MEDIA_ERROR + error.message.encode()
    except MemoryError:
        return _MEDIA_ERROR + b"the image cannot be decoded: it takes more memory than its size explains"
    except Exception as error:  # noqa: BLE001 - the boundary of one picture, logged
        # Without its message, which may quote the picture: this child has no log levels.
        logger.error("a picture could not be decoded:\n%s", traceback_of(error))
        return _FAILED + f"{type(error).__name__}: {error}".encode()


def _limit_memory(estimated_nbytes: int) -> None:
    """Limit the address space to what it is now, the estimate and some more."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = used + estimated_nbytes + _SPARE_NBYTES
    resource.setrlimit(resource.RLIMIT_AS, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


if __name__ == "__main__":
    main()
