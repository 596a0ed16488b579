"""Whether the server can be reached and is the right one, before Flower tries.

Flower's SuperNode ends alike for a cable that is out and for a certificate that is false. The
first mends itself, the second does not, and has to be told to a person.
"""

import os
import socket
import ssl
from dataclasses import dataclass
from enum import Enum
from urllib.request import getproxies, proxy_bypass

TIMEOUT_S = 20.0
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Meeting(Enum):
    """How an attempt ended."""

    OK = "ok"
    UNREACHABLE = "unreachable"
    """Try again."""
    NOT_TRUSTED = "not trusted"
    """Trying again will not help."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """How an attempt ended, and what there is to say of it."""

    meeting: Meeting
    reason: str = ""


def greet(address: str, authority: bytes) -> Greeting:
    """Connect to ``address`` (HOST:PORT) and look at its certificate; nothing is sent."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=authority.decode("ascii"))
        with (
            socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return Greeting(Meeting.OK)
    except ssl.SSLCertVerificationError as error:
        return Greeting(Meeting.NOT_TRUSTED, _certificate_fault(address, error))
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        return Greeting(Meeting.UNREACHABLE, f"{address} cannot be reached: {error}")


def proxy_for(address: str) -> str:
    """The HTTP proxy of the environment that a request to ``address`` takes; empty for none."""
    host = address.rpartition(":")[0].strip("[]")
    if proxy_bypass(host):
        return ""
    proxies = getproxies()
    return proxies.get("https") or proxies.get("all") or ""


def bypass_loopback() -> None:
    """Never take a proxy of the environment to this machine, here and in what is started."""
    hosts = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if hosts == "*":
        return
    names = [name.strip() for name in hosts.split(",") if name.strip()]
    names += [name for name in LOOPBACK if name not in names]
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(names)


def _certificate_fault(address: str, error: ssl.SSLCertVerificationError) -> str:
    said = error.verify_message or str(error)
    if "not yet valid" in said or "expired" in said:
        return f"the certificate of {address}: {said}; look at this device's clock first"
    if "mismatch" in said:
        return f"the certificate of {address} is for other names: {said}"
    return f"{address} is not the server of this enrolment (another CA): {said}"
