"""How Flower's processes are started here, and that none of them outlives who started it.

    python -m fedsys.deploy._process superlink | supernode | tasks | nursery

Settings come as one line of JSON on standard input, so that no key is in a file, an argument or
the environment. A process ends when its standard input does: whoever started it is then gone.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import IO, Any

END_S = 5.0
"""A process that was asked to end does so by then, whatever it is doing."""
Settings = dict[str, Any]


def start(
    name: str,
    settings: Settings,
    *,
    environment: dict[str, str] | None = None,
    output: IO[bytes] | int | None = None,
    own_group: bool = False,
) -> "subprocess.Popen[str]":
    """Start a process; its standard input stays open as long as this one.

    With ``own_group`` a Ctrl-C in the terminal does not reach it, and its group is all it starts.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "fedsys.deploy._process", name],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT if output is not None else None,
        env=environment,
        text=True,
        start_new_session=own_group,
    )
    with contextlib.suppress(OSError):  # it died at once, which its exit code tells
        tell(process, settings)
    return process


def tell(process: "subprocess.Popen[str]", settings: Settings) -> None:
    """Write one line of JSON to its standard input; OSError where it has ended."""
    if process.stdin is None:
        raise OSError("no standard input")
    process.stdin.write(json.dumps(settings) + "\n")
    process.stdin.flush()


def end_soon() -> None:
    """Ask this process to end, and see to it that it does."""
    timer = threading.Timer(END_S, os._exit, (1,))
    timer.daemon = True
    timer.start()
    os.kill(os.getpid(), signal.SIGTERM)


def _watch_parent() -> None:
    def watch() -> None:
        while os.read(0, 1 << 16):
            pass
        end_soon()

    threading.Thread(target=watch, daemon=True).start()


def _first_line() -> Iterator[bytes]:
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        yield byte


def main() -> None:
    """Be the process that the first argument names."""
    from fedsys.deploy import _flower, _warm

    os.umask(0o077)  # Flower's database and logs are as private as the folder that they are in
    _flower.check_version()
    name = sys.argv[1]
    processes: dict[str, Callable[[Settings], None]] = {
        "superlink": _flower.superlink,
        "supernode": _flower.supernode,
        "tasks": _warm.tasks,
        "nursery": _warm.nursery,
    }
    settings = json.loads(b"".join(_first_line()))
    if name != "nursery":
        _watch_parent()
    processes[name](settings)


if __name__ == "__main__":
    main()
