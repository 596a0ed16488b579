"""One client's connection and its twin to the server: how they begin, end and break together."""

import asyncio
import socket
import struct
from typing import Protocol

from netem.proxy.address import Resolved
from netem.proxy.counters import Passed
from netem.proxy.pipe import Pipe
from netem.proxy.way import Way

MAX_SEGMENT_BYTES = 1460
"""As on Ethernet. The loopback's 65483 bytes are about the whole receive window: what does not
fit in it waits for the acknowledgement of what does, which the receiver delays by 40 ms."""
CONNECT_TIMEOUT_S = 10.0


class Owner(Protocol):
    """The port that a connection came in by."""

    up: Way
    down: Way
    up_passed: Passed
    down_passed: Passed
    server: Resolved
    scratch: memoryview
    """Every read lands here and is copied out at once."""

    def opened(self, connection: "Connection") -> None:
        """A client is there."""
        ...

    def refused(self) -> None:
        """The server could not be reached."""
        ...

    def was_reset(self, connection: "Connection") -> None:
        """The connection was reset on purpose."""
        ...

    def closed(self, connection: "Connection") -> None:
        """Nothing is left of it."""
        ...


class Connection:
    """A client's socket, the socket to the server, and a pipe each way."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self.up = Pipe(owner.up, owner.up_passed, self)
        self.down = Pipe(owner.down, owner.down_passed, self)
        self.client = End(self, self.up, self.down, owner.scratch)
        self._server = End(self, self.down, self.up, owner.scratch)
        self._connecting: asyncio.Task[None] | None = None
        self._over = False
        """Both sides have been told to end."""
        self.frozen = False

    def made(self, end: "End") -> None:
        """A socket is connected; the handshake of the client's costs a round trip on the link."""
        if end is self.client:
            self._owner.opened(self)
            self.up.signal(self._handshake_returns)
            return
        client, server = self.client.transport, self._server.transport
        if client is None or server is None or self._over:
            self._server.abort()
        elif not self.frozen:
            self.up.start(client, server)
            self.down.start(server, client)

    def lost(self, end: "End") -> None:
        """A socket is closed; unless both were to be, the other side gets what was under way."""
        other = self._server if end is self.client else self.client
        if self._connecting is not None and end is self.client:
            self._connecting.cancel()
        if other.transport is None:
            self._owner.closed(self)
        elif not self._over:
            end.incoming.kill()
            end.outgoing.signal(other.abort)

    def ended(self) -> None:
        """One direction has delivered its end; with the second, the connection is over."""
        if self.up.ended and self.down.ended:
            self._over = True
            for end in (self.client, self._server):
                if end.transport is not None:
                    end.transport.close()

    def reset(self) -> None:
        """Break both sides with RST."""
        over = self._over
        self.abort()
        if not over:
            self._owner.was_reset(self)

    def abort(self) -> None:
        """Break both sides with RST, and count nothing."""
        self._over = True
        if self._connecting is not None:
            self._connecting.cancel()
        self.up.kill()
        self.down.kill()
        self.client.abort()
        self._server.abort()

    def freeze(self) -> None:
        """Go half-open: nothing is read, written or closed any more."""
        self.frozen = True
        self.up.freeze()
        self.down.freeze()

    def _handshake_returns(self) -> None:
        self.down.signal(self._connect)

    def _connect(self) -> None:
        if not self._over and self.client.transport is not None:
            self._connecting = asyncio.get_running_loop().create_task(self._open_server())

    async def _open_server(self) -> None:
        """Connect to the server; where that fails the client gets RST.

        A plain end would look like a broken TLS handshake, which clients take as final.
        """
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                sock = await connected(self._owner.server)
            await asyncio.get_running_loop().create_connection(lambda: self._server, sock=sock)
        except OSError:
            if not self._over:
                self._owner.refused()
                self.abort()
        finally:
            self._connecting = None


class End(asyncio.BufferedProtocol):
    """One of the two sockets: ``outgoing`` takes what it sends, ``incoming`` feeds it."""

    def __init__(
        self, connection: Connection, outgoing: Pipe, incoming: Pipe, scratch: memoryview
    ) -> None:
        self._connection = connection
        self._scratch = scratch
        self.outgoing = outgoing
        self.incoming = incoming
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait with reading until the other side is there."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.pause_reading()
        self._connection.made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Room for what the window allows."""
        return self._scratch[: self.outgoing.room_bytes()]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes are in the buffer."""
        self.outgoing.received(bytes(self._scratch[:nbytes]))

    def eof_received(self) -> bool:
        """Pass the end on in its turn, and keep the other direction."""
        self.outgoing.end()
        return True

    def pause_writing(self) -> None:
        """The receiver does not keep up."""
        self.incoming.fill(True)

    def resume_writing(self) -> None:
        """The receiver has caught up."""
        self.incoming.fill(False)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        self.transport = None
        self._connection.lost(self)

    def abort(self) -> None:
        """Close with RST, whatever is still to be sent."""
        if self.transport is not None:
            sock = self.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()


def limit_segments(sock: socket.socket) -> None:
    """Packets as on a real link, for a socket that is not connected yet, or listens."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, MAX_SEGMENT_BYTES)


async def connected(server: Resolved) -> socket.socket:
    """A socket to the first address of ``server`` that answers; OSError where none does."""
    failure = OSError("no address")
    for family, address in server:
        # asyncio switches Nagle off only where the protocol is named; with it, the tail of a
        # transfer waits 40 ms for a delayed acknowledgement.
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            sock.setblocking(False)
            limit_segments(sock)
            await asyncio.get_running_loop().sock_connect(sock, address)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure
