"""HOST:PORT: how it is read, and what it stands for."""

import asyncio
import socket
from typing import Any, NamedTuple

from fedsys.errors import ConfigError, LinkError

Resolved = tuple[tuple[socket.AddressFamily, Any], ...]
"""Socket addresses with their families, in the order in which to try them."""

MAX_PORT = 65535


class Address(NamedTuple):
    """A host by name or number, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        """As ``parse_address`` reads it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(what: str, text: str, *, default_host: str = "", min_port: int = 1) -> Address:
    """``HOST:PORT``, ``[IPv6]:PORT``, or ``PORT`` where there is a default host.

    Raises ConfigError that begins with ``what``.
    """
    host, colon, port = text.strip().rpartition(":")
    if not colon:
        host = default_host
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not host or not port.isdecimal() or not min_port <= int(port) <= MAX_PORT:
        raise ConfigError(
            f"{what}: expected HOST:PORT with a port from {min_port} to {MAX_PORT}, got '{text}'"
        )
    return Address(host, int(port))


def bound_socket(address: Address) -> socket.socket:
    """A TCP socket bound to ``address``; OSError where that is not to be had."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    # asyncio switches Nagle off only where the protocol is named; with it, the tail of a
    # transfer waits 40 ms for a delayed acknowledgement.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address.host, address.port))
    except OSError:
        sock.close()
        raise
    return sock


async def resolve(address: Address) -> Resolved:
    """Where to connect to; LinkError for a host that has no address."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise LinkError(f"{address}: no such host: {error.strerror}") from error
    return tuple((family, where) for family, _, _, _, where in found)
