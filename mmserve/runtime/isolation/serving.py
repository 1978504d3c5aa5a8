"""The child's side of ``KillableChild``: answers requests from stdin on stdout, each within a deadline."""

from __future__ import annotations

import resource
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from mmserve.runtime.isolation.frames import read_frame, write_frame

Answer = Callable[[bytes], bytes]


def serve(set_up: Callable[[bytes], Answer], *, stack_nbytes: int = 0) -> None:
    """Ends with stdin, or by SIGALRM if a request takes longer than the deadline in argv.

    ``set_up``: gets the parent's setup, returns what answers requests. ``stack_nbytes``: answer in a thread with a
    stack of this size.
    """
    # The parent decides when it ends; its own signals reach the whole process group.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    deadline_s, requests, answers = float(sys.argv[1]), sys.stdin.buffer, sys.stdout.buffer
    with suppress(EOFError):  # the parent is gone already
        answer = set_up(read_frame(requests))
        if not stack_nbytes:
            _answer_all(answer, deadline_s, requests, answers)
            return
        threading.stack_size(stack_nbytes)
        thread = threading.Thread(target=_answer_all, args=(answer, deadline_s, requests, answers))
        thread.start()
        thread.join()


def _answer_all(answer: Answer, deadline_s: float, requests: IO[bytes], answers: IO[bytes]) -> None:
    with suppress(EOFError, BrokenPipeError):
        write_frame(answers, b"")  # ready
        while True:
            request = read_frame(requests)
            signal.setitimer(signal.ITIMER_REAL, deadline_s)
            answered = answer(request)
            signal.setitimer(signal.ITIMER_REAL, 0)
            write_frame(answers, answered)


def limit_memory(nbytes: int) -> None:
    """Limit the address space of this process; a limit that it has already may be lower."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (nbytes if hard == resource.RLIM_INFINITY else min(nbytes, hard), hard))


def used_address_space() -> int:
    """In bytes."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
