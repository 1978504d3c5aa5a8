"""Links to HTTP workers: made for the first message, dropped when the worker has died."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from mmserve.ipc.links.channel import Receiver
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.ipc.links.http_links import HttpLinks
from mmserve.messages.reply import HttpInbound, TokenReply
from mmserve.messages.request import WorkerDied
from mmserve.router.output import OutputSender


@pytest.fixture
def endpoints(tmp_path: Path) -> Endpoints:
    return Endpoints(tmp_path)


def _reply(id: str) -> TokenReply:
    return TokenReply(id=id)


def _ids(inbox: Receiver[HttpInbound]) -> list[str]:
    return [message.id for message in inbox.drain(block=True, timeout_s=10.0) if isinstance(message, TokenReply)]


def test_there_is_a_link_only_to_a_worker_that_was_sent_something(endpoints: Endpoints) -> None:
    with closing(HttpLinks(endpoints)) as links:
        assert links.open_links == frozenset()
        links.send(1, _reply("a"))
        assert links.open_links == {1}
        links.drop(1)
        links.drop(0)  # never had one
        assert links.open_links == frozenset()


def test_a_message_waits_for_a_worker_that_is_starting(endpoints: Endpoints) -> None:
    with closing(HttpLinks(endpoints)) as links:
        links.send(0, _reply("early"))
        with closing(Receiver[HttpInbound](endpoints.http(0), HttpInbound)) as inbox:
            assert _ids(inbox) == ["early"]


def test_a_successor_gets_what_is_sent_to_it_and_nothing_of_the_dead_worker(endpoints: Endpoints) -> None:
    with closing(OutputSender(endpoints, 2)) as output:
        with closing(Receiver[HttpInbound](endpoints.http(1), HttpInbound)) as inbox:
            output.send_all([(1, _reply("first"))])
            assert _ids(inbox) == ["first"]
        output.send_all([(1, _reply("to the dead"))])
        output.drop_dead([WorkerDied(worker=1, died_s=0.0)])
        with closing(Receiver[HttpInbound](endpoints.http(1), HttpInbound)) as inbox:
            output.send_all([(1, _reply("to the successor"))])
            assert _ids(inbox) == ["to the successor"]
