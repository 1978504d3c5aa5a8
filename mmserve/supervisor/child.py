"""The wrapper around every server process: title, log, signals, lifeline, reports; then its role's ``run``.

Started by ``process.spawn``. Knows no role: what to run is in its ChildSpec.
"""

from __future__ import annotations

import faulthandler
import importlib
import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import cast

import msgspec
import setproctitle

from mmserve.config.process import Process, Stop
from mmserve.ipc.arena import Arena
from mmserve.runtime import log
from mmserve.runtime.errors import StartupError
from mmserve.runtime.memory_allocator import freeze_gc, keep_freed_memory
from mmserve.supervisor.child_protocol import ChildSpec, Failed, Progress, Ready, Report, encode_report

_PROGRESS_INTERVAL_S = 0.05
logger = logging.getLogger("mmserve.supervisor.child")


def main() -> None:
    """Become the process that stdin describes, and end with it."""
    try:
        _install_signals()
        code = _become(msgspec.msgpack.decode(sys.stdin.buffer.read(), type=ChildSpec))
    except Stop:
        code = 0
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: a library's thread or exit hook that hangs must not keep a finished process alive.
    os._exit(code)


def _become(launch: ChildSpec) -> int:
    keep_freed_memory()
    setproctitle.setproctitle(f"mmserve: {launch.title}")
    log.setup(launch.title, launch.deployment.config.log_level)
    _hang_on(launch)
    return _run(launch, _Reporter(launch.report_fd))


class _Reporter:
    """Writes reports to the supervisor, from any thread."""

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
        """Passed on a few times a second only."""
        now = time.monotonic()
        if done >= total or now - self._progress_s >= _PROGRESS_INTERVAL_S:
            self._progress_s = now
            self.send(Progress(done, total))

    def send(self, report: Report) -> None:
        # A write of one short line is atomic on a pipe. Without a supervisor the lifeline ends us anyway.
        with suppress(BrokenPipeError):
            os.write(self._fd, encode_report(report))


def _run(launch: ChildSpec, reporter: _Reporter) -> int:
    try:
        run = _resolve(launch.target)
        run(_process(launch, reporter))
    except StartupError as error:
        logger.debug("cannot start", exc_info=True)
        reporter.send(Failed(str(error)))
        return 1
    except Exception as error:
        # The process boundary: logged here, reported to the supervisor.
        logger.exception("died" if reporter.is_ready else "cannot start")
        reporter.send(Failed(" ".join(f"{type(error).__name__}: {error}".split())))
        return 1
    return 0


def _resolve(target: str) -> Callable[[Process], None]:
    module, _, function = target.partition(":")
    return cast(Callable[[Process], None], getattr(importlib.import_module(module), function))


def _process(launch: ChildSpec, reporter: _Reporter) -> Process:
    os.set_inheritable(launch.arena_fd, False)
    return Process(
        deployment=launch.deployment,
        role=launch.role,
        index=launch.index,
        incarnation=launch.incarnation,
        ready=reporter.ready,
        progress=reporter.progress,
        arena=Arena.attach(launch.arena_fd),
        listen_fd=launch.listen_fd,
    )


def _install_signals() -> None:
    """Ctrl-C and a closed terminal reach the whole process group, but only the supervisor acts on them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.signal(signal.SIGTERM, _stop)
    # The supervisor had them blocked, so that none could come before this.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGHUP, signal.SIGTERM})


def _stop(signum: int, frame: FrameType | None) -> None:
    # Once is enough: a second one must not interrupt the unwinding.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Stop


def _hang_on(launch: ChildSpec) -> None:
    """End this process, whatever it is doing, as soon as the supervisor is gone."""
    os.set_inheritable(launch.lifeline_fd, False)

    def wait() -> None:
        os.read(launch.lifeline_fd, 1)
        shutil.rmtree(launch.deployment.run_dir, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


if __name__ == "__main__":
    main()
