"""Messages between supervisor and child: one ChildSpec on the child's stdin, Reports as JSON lines on a pipe back."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Literal

import msgspec

from mmserve.config.resolved.deployment import Deployment
from mmserve.runtime.memory.allocator import freeze_gc

_PROGRESS_INTERVAL_S = 0.05


class ChildSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a child needs to run its role. Descriptors are inherited under the same numbers."""

    deployment: Deployment
    role: str
    index: int
    title: str
    target: str
    """module:function"""
    supervisor_pid: int
    report_fd: int
    parent_death_fd: int
    """Read end of a pipe that is at end of file once the supervisor is gone."""
    arena_fd: int
    rendezvous_fd: int | None = None
    """Of a process of the engine: see Process.rendezvous."""
    listen_fd: int | None = None
    preloads: tuple[str, ...] = ()
    """Of the fork server: the modules that it imports."""
    fork_link_fd: int | None = None
    """Of the fork server: its end of the link over which it is asked to fork."""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """``done`` of ``total``."""

    done: int
    total: int
    unit: Literal["bytes", "graphs"] = "bytes"
    """What is done: bytes of weights are loaded, or CUDA graphs are captured."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The process serves. ``details``: as passed to Process.ready."""

    details: dict[str, object]


class Accepting(msgspec.Struct, frozen=True, tag="accepting"):
    """Of an HTTP worker: it has been told that the server is ready, so it takes requests."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Why the process is about to exit, in one line."""

    reason: str


Report = Progress | Ready | Accepting | Failed

_encoder = msgspec.json.Encoder(enc_hook=str)
_decoder: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Report)


def encode_report(report: Report) -> bytes:
    """One line."""
    return _encoder.encode(report) + b"\n"


def decode_report(line: bytes) -> Report:
    """Raises msgspec.DecodeError."""
    return _decoder.decode(line)


class Reporter:
    """Writes reports to the supervisor, from any thread. Owns ``fd``, the write end of the pipe."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self._fd = fd
        self._progress_s = 0.0
        self.is_ready = False

    def ready(self, details: dict[str, object]) -> None:
        freeze_gc()
        self.is_ready = True
        self.send(Ready(details))

    def progress(self, done: int, total: int, what: str) -> None:
        """Rate-limited: sends at most one report per 50 ms, and the last."""
        now = time.monotonic()
        if done >= total or now - self._progress_s >= _PROGRESS_INTERVAL_S:
            self._progress_s = now
            self.send(Progress(done, total, "graphs" if what == "graphs" else "bytes"))

    def send(self, report: Report) -> None:
        # A write of one short line is atomic on a pipe. Without a supervisor the process ends by the parent-death pipe.
        with suppress(BrokenPipeError):
            os.write(self._fd, encode_report(report))
