"""``fedsys proxy`` as a process: its one line, its signals, and what it says of bad input."""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading

import httpx
import pytest

from fedsys.cli.main import run
from fedsys.config.load import parse_experiment
from netem.proxy.plan import load_plan

pytestmark = pytest.mark.net

LINK = "constant(up_bps=8e5, down_bps=8e5, tcp=none)"
FILE = """
upstream = "127.0.0.1:{port}"
seed = 3
control = "127.0.0.1:0"
server_egress_bps = 1e7

[[node]]
name = "field"
listen = "127.0.0.1:0"
link = "{link}"

[[node]]
listen = "0"
link = "perfect"

[[event]]
at_s = 1000
node = "field"
action = "cut"
"""


@contextlib.contextmanager
def proxy(*arguments):
    """A running command and the line that it printed."""
    command = [sys.executable, "-m", "fedsys.cli.main", "proxy", *map(str, arguments)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as one:
        try:
            yield one, json.loads(one.stdout.readline())
        finally:
            if one.poll() is None:
                one.kill()


@contextlib.contextmanager
def echo():
    """The port of a server that sends back what the one connection to it sends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    while data := connection.recv(65536):
                        connection.sendall(data)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]


def test_a_file_describes_it_all_and_a_signal_ends_it(tmp_path):
    with echo() as port:
        path = tmp_path / "links.toml"
        path.write_text(FILE.format(port=port, link=LINK))
        with proxy(path) as (process, ready):
            assert ready["nodes"].keys() == {"field", "2"}
            host, at = ready["nodes"]["field"].split(":")
            with socket.create_connection((host, int(at)), timeout=10) as client:
                client.sendall(b"a" * 10_000)
                client.shutdown(socket.SHUT_WR)
                got = b"".join(iter(lambda: client.recv(65536), b""))
            found = httpx.get(f"http://{ready['control']}/nodes/field", trust_env=False).json()
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=10)
    assert got == b"a" * 10_000
    assert found["up"]["out_bytes"] == found["down"]["out_bytes"] == 10_000
    assert found["up"]["rate_bps"] == 8e5
    assert (process.returncode, out, err) == (0, "", "")


def test_options_describe_nodes_too_and_ctrl_c_ends_it_in_peace():
    options = ["--listen", "127.0.0.1:0", "--link", "3g", "--node", "0=lte", "--seed", "4"]
    with proxy(*options, "--upstream", "127.0.0.1:9") as (process, ready):
        assert ready["nodes"].keys() == {"1", "2"}
        assert "control" not in ready
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=10)[1] == ""
    assert process.returncode == 0


def test_a_file_without_a_seed_has_the_links_of_an_experiment_without_one(tmp_path):
    (tmp_path / "links.toml").write_text(FILE.replace("seed = 3\n", "").format(port=1, link=LINK))
    assert load_plan(tmp_path / "links.toml").seed == parse_experiment("", where="none").run.seed


BASE = ["--upstream", "127.0.0.1:9", "--node", "0=lte"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no node: give --listen and --link, --node, or a file"),
        (["--listen", "127.0.0.1:0"], "--listen and --link belong together"),
        (["--node", "0=lte"], "--upstream HOST:PORT is missing"),
        (["--node", "0=ltee", "--upstream", "h:1"], "node 1: no link 'ltee'"),
        (["--node", "lte", "--upstream", "h:1"], "expected [HOST:]PORT=LINK"),
        (["--node", "x=lte", "--upstream", "h:1"], "node 1: listen: expected HOST:PORT"),
        (["--upstream", "h", "--node", "0=lte"], "--upstream: expected HOST:PORT"),
        ([*BASE, "--control", "9"], "--control: expected HOST:PORT"),
        ([*BASE, "--server-egress-bps", "0"], "server_egress_bps must be above 0, got 0"),
        ([*BASE, "--server-ingress-bps", "nan"], "server_ingress_bps must be above 0"),
        ([*BASE, "--schedule", "nowhere.toml"], "nowhere.toml: cannot be read"),
        (["nowhere.toml"], "nowhere.toml: cannot be read"),
        (["links.toml", "--seed", "1"], "links.toml: give a file or options, not both"),
    ],
)
def test_bad_options_are_one_line_and_code_2(capsys, arguments, words):
    assert run(["proxy", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert words in err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seed = 1", "needs upstream"),
        ("upstream = 'h:1'", "needs nodes"),
        ("upstream = 'h:1'\nnodes = 1", "no option 'nodes'; did you mean 'node'?"),
        ("upstream = 'h:1'\nnode = [1]", "node 1: expected a [[node]] table"),
        ("upstream = 'h:1'\n[[node]]\nlisten = '0'", "node 1: needs link"),
        ("upstream = 'h:1'\n[[node]]\nlisten = '0'\nlink = 3", "node 1: link must be text"),
        ("upstream = 'h:1'\n[[node]]\nlisten = 'x'\nlink = 'lte'", "node 1: listen: expected"),
        ("upstream = 'h:1'\n[[node]]\nlisten = '0'\nlink = 'lte'\nname='*'", "the name '*'"),
        (
            "upstream = 'h:1'\n" + 2 * "[[node]]\nlisten = '0'\nlink = 'lte'\nname='a'\n",
            "different names",
        ),
        (FILE.format(port=9, link=LINK).replace('"cut"', '"cat"'), "event 1: no action 'cat'"),
    ],
)
def test_a_bad_file_is_one_line_that_names_it_and_code_2(capsys, tmp_path, text, words):
    path = tmp_path / "links.toml"
    path.write_text(text)
    assert run(["proxy", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert words in err


def test_a_port_in_use_is_one_line_and_code_1(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run(["proxy", "--upstream", "127.0.0.1:9", "--node", f"{port}=lte"]) == 1
    assert f"node '1': cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err
