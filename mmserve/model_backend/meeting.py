"""Where the ranks of one start find each other: a file on one machine, a store of rank 0 across several."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta

from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from mmserve.config.node_options import head_address
from mmserve.config.resolved.process import Process
from mmserve.ipc.links.channel import Receiver, Sender
from mmserve.messages.nodes import Meet, StoreOpened
from mmserve.model_backend.distributed import Meeting, at_file
from mmserve.runtime.network import interface_towards, resolved

_TIMEOUT = timedelta(minutes=10)
_BACKLOG = 128


@contextmanager
def meeting_of(process: Process) -> Iterator[Meeting | None]:
    """None for a single rank. Across nodes it waits, without limit, until all nodes are there."""
    config = process.deployment.config
    if config.tp == 1:
        yield None
    elif config.nnodes == 1:
        assert process.rendezvous is not None
        yield at_file(process.rendezvous, config.tp, process.endpoints.run_dir)
    else:
        with _store(process) as store:
            yield Meeting(store, interface_towards(*head_address(config)), len(process.deployment.ranks_here))


@contextmanager
def _store(process: Process) -> Iterator[Store]:
    endpoints, size, rank = process.endpoints, process.deployment.config.tp, process.index
    with closing(Receiver[Meet](endpoints.meeting(rank), Meet)) as inbox:
        if rank != 0:
            meet = inbox.receive()
            yield TCPStore(meet.host, meet.port, size, False, _TIMEOUT)
            return
        listener, number = _listener(process)
        port = listener.getsockname()[1]
        # It answers on this address alone, and takes the socket over.
        store = TCPStore(number, port, size, True, _TIMEOUT, wait_for_workers=False, master_listen_fd=listener.detach())
        with closing(Sender[StoreOpened](endpoints.node_store, StoreOpened)) as outbox:
            outbox.send(StoreOpened(port=port))
            inbox.receive()
            yield store


def _listener(process: Process) -> tuple[socket.socket, str]:
    """A socket at a free port of the head's address, and that address."""
    family, number = resolved(*head_address(process.deployment.config))
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.bind((number, 0))
    listener.listen(_BACKLOG)
    return listener, number
