"""LLM: a model in a server of this program's own, for code without an event loop, and for notebooks that have one."""

from __future__ import annotations

import weakref

from mmserve.client.loop_thread import LoopThread
from mmserve.client.offline.answer import Answer
from mmserve.client.offline.asked import Asked, Question
from mmserve.client.offline.chats import Chats
from mmserve.client.offline.server import OfflineServer
from mmserve.client.offline.stream import Stream


class LLM(Asked[Answer, list[Answer], Stream]):
    """See ``Asked``. The processes are ready when it is made, or StartupError is raised.

    They end with ``close``, with the block of ``with``, with this object and with the program. Any thread may use it.
    Ctrl-C ends the requests alone.
    """

    def _made(self) -> None:
        own = self._server.start()
        # The caller's thread may have an event loop that runs, as in a notebook.
        self._thread = LoopThread("mmserve LLM")
        try:
            self._chats = self._thread.run(Chats.connect(own, self._server.max_in_flight))
        except BaseException:  # nobody would close an LLM that could not be made
            self._thread.close()
            self._server.stop()
            raise
        self._finalizer = weakref.finalize(self, _close, self._thread, self._chats, self._server)

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the requests that are under way, and stop all processes."""
        self._finalizer()

    def _chat(self, question: Question, *, progress: bool) -> Answer | list[Answer]:
        self._server.check_usable()
        answers: Answer | list[Answer] = self._thread.run(self._chats.chat(question, progress=progress))
        return answers

    def _stream(self, question: Question) -> Stream:
        self._server.check_usable()
        return Stream(self._thread, self._chats.stream(question))


def _close(thread: LoopThread, chats: Chats, server: OfflineServer) -> None:
    """In a copy of the process, made by a fork, there is no such thread, and the server is the original's."""
    if server.is_mine:
        thread.close(chats.aclose)
        server.stop()
