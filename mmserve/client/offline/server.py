"""The server of an LLM: started once, stopped once, also when its owner is forgotten or the program ends."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from mmserve.client.offline.options import checked
from mmserve.client.own_server import OwnServer, own_server

OnLine = Callable[[str], object]


class OfflineServer:
    """``options``: of ``mmserve serve``. ``on_log`` gets each line of its output. Raises OptionError.

    ``max_in_flight``: requests at once with which the server is busy. All methods block.
    """

    def __init__(self, model: str, options: Mapping[str, Any], on_log: OnLine) -> None:
        config, self._arguments = checked(options)
        self.max_in_flight = config.max_num_seqs + 8
        self._model = model
        self._on_log = on_log
        self._pid = os.getpid()
        self._stack = contextlib.ExitStack()
        self._finalizer = weakref.finalize(self, _close, self._stack, self._pid)

    def start(self) -> OwnServer:
        """Returns when it is ready. Raises StartupError."""
        return self._stack.enter_context(own_server(self._model, self._arguments, on_line=self._on_log))

    @property
    def is_mine(self) -> bool:
        """False in a copy of the process that made it."""
        return os.getpid() == self._pid

    def check_usable(self) -> None:
        """Raises RuntimeError after ``stop``, and in a copy of this process."""
        if not self.is_mine:
            raise RuntimeError("this LLM belongs to the process that made it: make another one after a fork")
        if not self._finalizer.alive:
            raise RuntimeError("this LLM is closed")

    def stop(self) -> None:
        """Stop the server, if it runs. Requests should have ended, or they are waited for."""
        self._finalizer()


def _close(stack: contextlib.ExitStack, pid: int) -> None:
    """A copy of the process, made by a fork, must not stop the server of the original."""
    if os.getpid() == pid:
        stack.close()
