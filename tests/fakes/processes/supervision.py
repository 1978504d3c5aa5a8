"""Starts ``supervised`` and observes it from outside: events, output, processes, run directories."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

from mmserve.messages.reply import ServerPhase
from tests.fakes.models.weight_files import sparse_weights

TIMEOUT_S = 30.0


class Supervised:
    """One supervisor with fake servers. Their orders are files, written before or while it runs."""

    def __init__(self, scratch: Path, runtime: Path, *flags: str, wrapper: Sequence[str] = (), **streams: Any) -> None:
        self.scratch = scratch
        self.runtime = runtime
        module = "tests.fakes.processes.supervised"
        command = [sys.executable, "-m", module, "--model", str(scratch), "--port", "0", *flags]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **streams}
        self.popen: subprocess.Popen[str] = subprocess.Popen(
            [*wrapper, *command],
            env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)},
            text=True,
            start_new_session=True,
            **streams,
        )
        self.output = ""
        self._events_fd = os.open(scratch / "events", os.O_RDWR)
        self._unread = b""

    def until(self, event: str) -> str:
        """Wait for the next event that starts with ``event`` and return it. Events before it are skipped."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while True:
            while b"\n" in self._unread:
                line, self._unread = self._unread.split(b"\n", 1)
                if line.decode().startswith(event):
                    return line.decode()
            readable, _, _ = select.select([self._events_fd], [], [], max(0.0, deadline_s - time.monotonic()))
            assert readable, f"{event!r} has not come"
            self._unread += os.read(self._events_fd, 1 << 16)

    def phase(self, *, worker: int = 0, **fields: object) -> ServerPhase:
        """Wait for the next phase message to the HTTP worker with these fields."""
        while True:
            event = self.until(f"phase httpserver-{worker} ")
            phase = msgspec.json.decode(event.split(" ", 2)[2], type=ServerPhase)
            if all(getattr(phase, name) == value for name, value in fields.items()):
                return phase

    def until_ready(self) -> str:
        """Wait for the ready line and return it."""
        return self.until_printed("mmserve is ready")

    def until_printed(self, text: str) -> str:
        """Wait for the next line with ``text`` and return it."""
        assert self.popen.stdout is not None
        # A server that prints nothing more would block this for ever.
        late = threading.Timer(TIMEOUT_S, self._kill)
        late.start()
        try:
            for line in self.popen.stdout:
                self.output += line
                if text in line:
                    return line
        finally:
            late.cancel()
        raise AssertionError(f"never printed {text!r}:\n{self.output}")

    def family(self) -> list[psutil.Process]:
        """The supervisor and all its descendants."""
        root = psutil.Process(self.popen.pid)
        return [root, *root.children(recursive=True)]

    def process(self, title: str) -> psutil.Process:
        return next(process for process in self.family() if " ".join(process.cmdline()).strip() == f"mmserve: {title}")

    def successor(self, title: str, pid: int) -> psutil.Process:
        """Wait for the process with this title that is not ``pid``."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline_s:
            with contextlib.suppress(StopIteration, psutil.NoSuchProcess):
                if (process := self.process(title)).pid != pid:
                    return process
            time.sleep(0.02)
        raise AssertionError(f"{title} was not started again")

    def signal(self, signum: signal.Signals) -> None:
        """Signal the whole process group, as a terminal does."""
        os.killpg(self.popen.pid, signum)

    def end(self) -> int:
        """Wait for the supervisor to end. Returns the exit code; ``output`` has all output."""
        rest, _ = self.popen.communicate(timeout=TIMEOUT_S)
        self.output += rest or ""
        return self.popen.returncode

    def run_dirs(self) -> list[str]:
        return [path.name for path in self.runtime.iterdir()]

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)

    def close(self) -> None:
        self._kill()
        self.popen.communicate()
        os.close(self._events_fd)


@contextlib.contextmanager
def supervised(
    *flags: str,
    orders: dict[str, str] | None = None,
    runtime: Path | None = None,
    real_status: bool = False,
    wrapper: Sequence[str] = (),
    **streams: Any,
) -> Iterator[Supervised]:
    """A started supervisor. ``orders``: process name -> what its server does (see ``supervised.run``).
    ``real_status``: with the real metrics and health servers. ``wrapper``: words before the command. ``streams``:
    stdout and stderr, as of Popen, in place of the pipe that is read here."""
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scratch")))
        runtime = runtime or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rt", dir="/tmp")))
        os.mkfifo(scratch / "events")
        sparse_weights(scratch, {})
        if real_status:
            (scratch / "real-status").touch()
        for name, order in (orders or {}).items():
            (scratch / f"order-{name}").write_text(order)
        server = Supervised(scratch, runtime, *flags, wrapper=wrapper, **streams)
        stack.callback(server.close)
        yield server


def all_gone(processes: list[psutil.Process]) -> bool:
    """Wait for the processes to end. False if one is alive after the timeout."""
    _, alive = psutil.wait_procs(processes, timeout=TIMEOUT_S)
    return not alive
