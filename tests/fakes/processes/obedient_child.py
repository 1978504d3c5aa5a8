"""A child of ``KillableChild`` that does what it is asked: a word, and an argument for some."""

from __future__ import annotations

import os
import signal
import sys

from mmserve.runtime.isolation.serving import Answer, limit_memory, serve, used_address_space


def _set_up(setup: bytes) -> Answer:
    if setup == b"fail":
        sys.exit(7)
    return lambda request: _obey(setup, request)


def _obey(setup: bytes, request: bytes) -> bytes:
    word, _, argument = request.decode().partition(" ")
    match word:
        case "setup":
            return setup
        case "echo":
            return argument.encode()
        case "variable":
            return os.environ.get(argument, "").encode()
        case "exit":
            os._exit(int(argument))
        case "kill":
            signal.raise_signal(int(argument))
        case "loop":
            while True:
                pass
        case "interrupt":
            for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.raise_signal(signum)
        case "allocate":
            limit_memory(used_address_space() + (16 << 20))
            try:
                bytearray(int(argument))
            except MemoryError:
                return b"refused"
    return b""


if __name__ == "__main__":
    serve(_set_up, stack_nbytes=int(os.environ.get("STACK_NBYTES", "0")))
