"""Ends of a UDP stream, run as processes inside namespaces; no test.

``blast ADDRESS COUNT BYTES`` sends numbered packets at once; ``sink COUNT IDLE_S`` prints number,
seconds and bytes of each that came; ``echo`` sends everything back; ``ping ADDRESS COUNT`` prints
the seconds of each round trip, or inf.
"""

import json
import socket
import sys
import time

PORT = 7007


def sink(sock: socket.socket, count: int, idle_s: float) -> list[tuple[int, float, int]]:
    came: list[tuple[int, float, int]] = []
    while len(came) < count:
        try:
            packet = sock.recv(2048)
        except TimeoutError:
            break
        came.append((int.from_bytes(packet[:4], "big"), time.monotonic(), len(packet)))
        sock.settimeout(idle_s)
    return came


def ping(sock: socket.socket, address: str, count: int) -> list[float]:
    seconds = []
    for number in range(count):
        begin_s = time.monotonic()
        sock.sendto(number.to_bytes(4, "big"), (address, PORT))
        try:
            while int.from_bytes(sock.recv(2048)[:4], "big") != number:
                pass
            seconds.append(time.monotonic() - begin_s)
        except TimeoutError:
            seconds.append(float("inf"))
    return seconds


def main() -> None:
    end, *rest = sys.argv[1:]
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32 << 20)
    if end in ("sink", "echo"):
        sock.bind(("", PORT))
        print("ready", flush=True)
    if end == "echo":
        while True:
            sock.sendto(*sock.recvfrom(2048))
    elif end == "sink":
        sock.settimeout(10)
        print(json.dumps(sink(sock, int(rest[0]), float(rest[1]))))
    elif end == "blast":
        for number in range(int(rest[1])):
            body = number.to_bytes(4, "big").ljust(int(rest[2]), b"x")
            sock.sendto(body, (rest[0], PORT))
    else:
        sock.settimeout(2)
        print(json.dumps(ping(sock, rest[0], int(rest[1]))))


if __name__ == "__main__":
    main()
