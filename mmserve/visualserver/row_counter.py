"""Answers HTTP workers that ask what images of some sizes become in a prompt, in a thread of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from mmserve.ipc.links.channel import Sender
from mmserve.messages.reply import HttpInbound, ImageRows
from mmserve.messages.request import CountImageRows
from mmserve.model_backend.vision.interface import CountsRows

logger = logging.getLogger(__name__)


class RowCounter:
    """``tower`` counts. ``link``: makes the link to an HTTP worker, by its index."""

    def __init__(self, tower: CountsRows, link: Callable[[int], Sender[HttpInbound]]) -> None:
        self._tower = tower
        self._link = link
        self._links: dict[int, Sender[HttpInbound]] = {}
        """Used from the thread only."""
        self._thread = ThreadPoolExecutor(1, "count-rows")

    def receive(self, question: CountImageRows) -> None:
        """Answer later. A question that fails gets no answer, and the worker's deadline passes."""
        self._thread.submit(self._answer, question)

    def close(self) -> None:
        """Wait for the running question, and close the links."""
        self._thread.shutdown(cancel_futures=True)
        for link in self._links.values():
            link.close()

    def _answer(self, question: CountImageRows) -> None:
        try:
            expansions = tuple(self._tower.expansions(question.sizes))
            link = self._links.get(question.reply_to)
            if link is None:
                link = self._links[question.reply_to] = self._link(question.reply_to)
            link.send(ImageRows(sizes=question.sizes, expansions=expansions))
        except Exception:  # the boundary of one question
            logger.exception("the rows of images of the sizes %s could not be counted", question.sizes)
