"""Both ends of one timed HTTP POST, each a process inside a namespace of its own.

``python -m netem.kernel.http_peer serve ADDRESS`` prints its port;
``python -m netem.kernel.http_peer post ADDRESS PORT BYTES`` prints seconds and congestion control.
"""

import argparse
import http.client
import http.server
import json
import socket

from fedsys.clock import WallClock

_CHUNK_BYTES = 1 << 16
_LIMIT_S = 590.0


class _Sink(http.server.BaseHTTPRequestHandler):
    """Reads a body to its end, then answers with nothing."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        left_bytes = int(self.headers["Content-Length"])
        while left_bytes > 0:
            got = self.rfile.read1(min(left_bytes, _CHUNK_BYTES))
            if not got:
                return
            left_bytes -= len(got)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.send_header("Connection", "close")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        return


def serve(address: str) -> None:
    """Answer POSTs on any free port of ``address`` for ever; the port is the first line said."""
    server = http.server.ThreadingHTTPServer((address, 0), _Sink)
    print(server.server_port, flush=True)
    server.serve_forever()


def post(address: str, port: int, size_bytes: int, count_connect: bool) -> tuple[float, str]:
    """Seconds that the POST took, and the congestion control that sent it."""
    clock = WallClock()
    body = bytes(size_bytes)
    connection = http.client.HTTPConnection(address, port, timeout=_LIMIT_S)
    begin_s = clock.now_s()
    connection.connect()
    if not count_connect:
        begin_s = clock.now_s()
    name = connection.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    connection.request("POST", "/", body=body)
    connection.getresponse().read()
    seconds = clock.now_s() - begin_s
    connection.close()
    return seconds, name.rstrip(b"\0").decode("ascii")


def main() -> None:
    """Be one of the two ends."""
    parser = argparse.ArgumentParser(prog="netem.kernel.http_peer")
    ends = parser.add_subparsers(dest="end", required=True)
    ends.add_parser("serve").add_argument("address")
    poster = ends.add_parser("post")
    poster.add_argument("address")
    poster.add_argument("port", type=int)
    poster.add_argument("size_bytes", type=int)
    poster.add_argument("--connect", action="store_true")
    chosen = parser.parse_args()
    if chosen.end == "serve":
        serve(chosen.address)
        return
    seconds, tcp = post(chosen.address, chosen.port, chosen.size_bytes, chosen.connect)
    print(json.dumps({"seconds": seconds, "tcp": tcp}))


if __name__ == "__main__":
    main()
