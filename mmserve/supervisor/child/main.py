"""Main module of every server process: sets up title, log, signals, parent-death pipe and reports, then runs its role.

Started by ``spawn.Spawner``. The ChildSpec names the role's function.
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
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import cast

import msgspec
import setproctitle

from mmserve.config.resolved.process import Process, Stop
from mmserve.ipc.arena import Arena
from mmserve.runtime.errors import StartupError
from mmserve.runtime.logs import log
from mmserve.runtime.logs.exceptions import message_of
from mmserve.runtime.memory.allocator import importing, keep_freed_memory
from mmserve.supervisor.child import fork_server
from mmserve.supervisor.child.protocol import Accepting, ChildSpec, Failed, Reporter

logger = logging.getLogger("mmserve.supervisor.child")


def main() -> None:
    """Run the role of the ChildSpec on stdin, then exit."""
    try:
        _install_signals()
        code = _run_child(msgspec.msgpack.decode(sys.stdin.buffer.read(), type=ChildSpec))
    except Stop:
        code = 0
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # a full disk, or nobody who reads it
            stream.flush()
    # Not sys.exit: a library's thread or exit hook that hangs would keep the process alive.
    os._exit(code)


def _run_child(spec: ChildSpec) -> int:
    reporter = Reporter(spec.report_fd)
    try:
        _set_up(spec)
        while spec.preloads:  # a fork server may fork another one
            spec, reporter = fork_server.serve(spec, reporter)  # returns in each process that it forks
            _install_signals()
            _set_up(spec)
        _exit_with_parent(spec)
        _resolve(spec.target)(_process(spec, reporter))
    except StartupError as error:
        logger.debug("cannot start", exc_info=True)
        reporter.send(Failed(str(error)))
        return 1
    except Exception as error:
        # Process boundary: logged here, reported to the supervisor.
        logger.exception("died" if reporter.is_ready else "cannot start")
        # Before it serves, it has seen no request that a message could quote.
        reporter.send(Failed(" ".join(message_of(error, in_full=not reporter.is_ready).split())))
        return 1
    return 0


def _set_up(spec: ChildSpec) -> None:
    keep_freed_memory()
    setproctitle.setproctitle(f"mmserve: {spec.title}")
    log.setup(spec.title, spec.deployment.config.log_level, spec.deployment.config.log_format)


def _resolve(target: str) -> Callable[[Process], None]:
    module, _, function = target.partition(":")
    with importing():
        return cast(Callable[[Process], None], getattr(importlib.import_module(module), function))


def _process(spec: ChildSpec, reporter: Reporter) -> Process:
    os.set_inheritable(spec.arena_fd, False)
    if spec.rendezvous_fd is not None:
        os.set_inheritable(spec.rendezvous_fd, False)
    return Process(
        deployment=spec.deployment,
        role=spec.role,
        index=spec.index,
        ready=reporter.ready,
        progress=reporter.progress,
        accepting=lambda: reporter.send(Accepting()),
        arena=Arena.attach(spec.arena_fd),
        rendezvous=None if spec.rendezvous_fd is None else Path(f"/proc/self/fd/{spec.rendezvous_fd}"),
        listen_fd=spec.listen_fd,
        supervisor_pid=spec.supervisor_pid,
    )


def _install_signals() -> None:
    """Ignore Ctrl-C and a closed terminal, which reach the whole process group; only the supervisor handles them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.signal(signal.SIGTERM, _stop)
    # The supervisor has blocked them, so that none arrives before the handlers are installed.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGHUP, signal.SIGTERM})


def _stop(signum: int, frame: FrameType | None) -> None:
    # A second SIGTERM must not interrupt the unwinding.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Stop


def _exit_with_parent(spec: ChildSpec) -> None:
    """Exit as soon as the supervisor is gone, whatever this process is doing."""
    os.set_inheritable(spec.parent_death_fd, False)

    def wait() -> None:
        os.read(spec.parent_death_fd, 1)
        shutil.rmtree(spec.deployment.run_dir, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=wait, name="parent-death", daemon=True).start()


if __name__ == "__main__":
    main()
