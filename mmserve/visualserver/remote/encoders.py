"""Accepts encoders of other machines and keeps their links. Lives on the event loop."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import socket
from collections.abc import Callable

from mmserve.config.resolved.facts import difference
from mmserve.ipc.arena import Arena
from mmserve.runtime.errors import StartupError
from mmserve.runtime.logs.seldom import Seldom
from mmserve.runtime.network import resolved
from mmserve.visualserver.remote.encoder_link import EncoderLink
from mmserve.visualserver.remote.frames import (
    GREETING,
    NONCE_NBYTES,
    SIGNATURE_NBYTES,
    BrokenEncoderLink,
    Direction,
    Hello,
    Ping,
    Refused,
    Session,
    Welcome,
)
from mmserve.visualserver.remote.streams import AsyncStream

_MAX_CONNECTIONS = 64
"""Further ones are closed at once."""
_PINGS_PER_TIMEOUT = 5
_RETRY_S = 0.1
logger = logging.getLogger(__name__)


class Encoders:
    """Use ``run`` as a task. ``on_change``: called when an encoder has come or gone."""

    def __init__(
        self,
        listener: socket.socket,
        secret: bytes,
        facts: dict[str, str],
        visual_servers: int,
        arena: Arena,
        timeout_s: float,
    ) -> None:
        listener.setblocking(False)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # which connections inherit
        self._listener, self._secret, self._facts, self._arena = listener, secret, facts, arena
        self._visual_servers, self._timeout_s = visual_servers, timeout_s
        self._links: dict[str, EncoderLink] = {}
        self._num_connections = 0
        self._seldom = Seldom()
        self.on_change: Callable[[], None] = lambda: None

    @property
    def links(self) -> list[EncoderLink]:
        """To the encoders that are here."""
        return list(self._links.values())

    def close(self) -> None:
        """Listen no longer."""
        self._listener.close()

    async def run(self) -> None:
        """Until cancelled; ends all connections then."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            while True:
                try:
                    sock, address = await loop.sock_accept(self._listener)
                except OSError as error:  # gone again, or no descriptor is left
                    if self._seldom.is_due(str(error)):
                        logger.warning("an encoder could not connect: %s", error)
                    await asyncio.sleep(_RETRY_S)
                    continue
                if self._num_connections >= _MAX_CONNECTIONS:
                    sock.close()
                else:
                    self._num_connections += 1
                    tasks.create_task(self._serve(sock, address[0]))

    async def _serve(self, sock: socket.socket, peer: str) -> None:
        with sock:
            try:
                await self._link(AsyncStream(sock, self._timeout_s), peer)
            except BrokenEncoderLink as error:
                if self._seldom.is_due(f"{peer}: {error}"):
                    logger.warning("the connection of an encoder on %s ends: %s", peer, error)
            except Exception as error:  # the boundary of one connection
                if self._seldom.is_due(f"{peer}: {error!r}"):
                    logger.exception("the connection of an encoder on %s ends by an error of this server", peer)
            finally:
                self._num_connections -= 1

    async def _link(self, stream: AsyncStream, peer: str) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                session = await self._admit(stream)
                incoming = Direction(session.to_listener)
                hello = await stream.message(incoming)
        except TimeoutError:
            raise BrokenEncoderLink("it takes too long to introduce itself") from None
        if not isinstance(hello, Hello):
            raise BrokenEncoderLink("it does not say what it is")
        link = EncoderLink(stream, session, hello, incoming, self._arena)
        if differences := difference(self._facts, hello.facts):
            logger.error("an encoder on %s is refused: it differs from this server: %s", peer, differences)
            await link.answer(Refused(reason=f"this encoder differs from the server: {differences}"))
            return
        if (before := self._links.get(hello.name)) is not None:  # it has noticed first that the connection is dead
            before.close()
        await link.answer(Welcome(visual_servers=self._visual_servers))
        await self._use(link, peer)

    async def _admit(self, stream: AsyncStream) -> Session:
        """Raises BrokenEncoderLink if the other end does not have the secret."""
        if await stream.read(len(GREETING)) != GREETING:
            raise BrokenEncoderLink("it speaks another protocol")
        encoder_nonce, own_nonce = await stream.read(NONCE_NBYTES), secrets.token_bytes(NONCE_NBYTES)
        session = Session.of(self._secret, encoder_nonce, own_nonce)
        await stream.send(own_nonce + session.listener_proof)
        if not hmac.compare_digest(await stream.read(SIGNATURE_NBYTES), session.encoder_proof):
            raise BrokenEncoderLink("it does not have the key")
        return session

    async def _use(self, link: EncoderLink, peer: str) -> None:
        logger.info("an encoder on %s is here", peer)
        self._links[link.name] = link
        self.on_change()
        pings = asyncio.create_task(self._ping(link))
        try:
            await link.receive()
        finally:
            pings.cancel()
            await asyncio.gather(pings, return_exceptions=True)
            if self._links.get(link.name) is link:
                del self._links[link.name]
            self.on_change()

    async def _ping(self, link: EncoderLink) -> None:
        while True:
            await asyncio.sleep(self._timeout_s / _PINGS_PER_TIMEOUT)
            await link.answer(Ping())


def listening_socket(host: str, port: int) -> socket.socket:
    """Raises StartupError."""
    family, number = resolved(host, port)
    try:
        return socket.create_server((number, port), family=family)
    except OSError as error:
        raise StartupError(f"--encoders: this machine cannot listen at {host}:{port}: {error.strerror}") from None
