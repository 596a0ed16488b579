"""Clients in Flower's Ray backend: the same bytes, whatever becomes of an actor, and no traces."""

import ast
import importlib.util
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

from fedsys._flwr_private import set_task_identity
from fedsys.cli.main import run
from fedsys.engine.ray_app import RayApp, body_of, message_like
from fedsys.engine.serving import Call, Service
from fedsys.engine.shared import Parts, dump

EXPERIMENT = """
run = { name = "r", budget = { rounds = 5 } }
task = { name = "digits" }
partition = { clients = 24, alpha = 0.5 }
codec = { uplink = "topk(0.05)|int8", downlink = "int8" }
network = { link = "3g", dropout_fraction = 0.05 }
strategy = { name = "fixed", options = { local_steps = 3 } }
"""
LIMIT_S = 240
FLOWER = {
    "flwr.simulation.ray_transport.ray_actor": {
        "VirtualClientEngineActor": {"run": ["client_app_fn", "message", "cid", "context"]},
        "BasicActorPool": {
            "__init__": ["actor_type", "client_resources", "actor_kwargs"],
            "add_actors_to_pool": ["num_actors"],
            "terminate_all_actors": [],
        },
    },
    "flwr.server.superlink.fleet.vce.backend.raybackend": {
        "RayBackend": {"__init__": ["backend_config"], "terminate": []},
    },
}
"""Private modules to classes to methods to arguments, as ``fedsys.engine._flwr_ray`` uses them."""


@pytest.fixture
def needs_ray():
    pytest.importorskip("ray", reason="Ray is an extra: pip install 'fedsys[ray]'")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "r.toml"
    path.write_text(EXPERIMENT)
    return path


@pytest.mark.parametrize("module", FLOWER)
def test_flowers_backend_has_the_private_names_that_are_used(module):
    # Read and not imported, so that this is looked at where there is no Ray, too.
    source = Path(importlib.util.find_spec(module.rpartition(".")[0]).origin)
    tree = ast.parse((source.parent / f"{module.rpartition('.')[2]}.py").read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    for name, methods in FLOWER[module].items():
        there = {m.name: m for m in classes[name].body if isinstance(m, ast.FunctionDef)}
        for method, arguments in methods.items():
            assert [a.arg for a in there[method].args.args[1:]] == arguments, f"{name}.{method}"
    assert "self.pool" in ast.unparse(classes[list(FLOWER[module])[-1]])
    assert module.endswith("raybackend") or "ClientAppActor" in classes


def test_without_ray_one_line_says_what_to_install_before_any_work(file, tmp_path, capsys):
    if importlib.util.find_spec("ray") is not None:
        pytest.skip("Ray is installed")
    out = tmp_path / "runs"
    assert run(["simulate", str(file), "--engine", "ray", "--out", str(out)]) == 2
    wanted = "fedsys: error: --engine ray needs Ray: pip install 'fedsys[ray]'\n"
    assert capsys.readouterr().err == wanted
    assert not out.exists()


def test_an_address_without_the_engine_is_refused(file, capsys):
    assert run(["simulate", str(file), "--ray-address", "auto"]) == 2
    assert "no effect without --engine ray" in capsys.readouterr().err


@pytest.mark.usefixtures("needs_ray")
def test_ray_is_not_imported_before_it_is_asked_for():
    code = "import sys, fedsys.cli.main, fedsys.cli.run, fedsys.engine.ray_crew as crew\n"
    code += "crew.check_ray(); sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def served(app, body):
    """What an actor makes of one job."""
    set_task_identity(1)
    message = message_like(Message(RecordDict(), 7, "query"), body)
    reply = app()(message=message, context=Context(1, 7, {}, RecordDict(), {}))
    assert reply.metadata.dst_node_id == message.metadata.src_node_id
    is_well, (_, outcome) = pickle.loads(body_of(reply))
    return is_well, outcome


def test_an_actor_answers_a_job_with_the_bytes_that_jobs_share():
    service = Service(app="operator:add", run_id=1, run_config={})
    parts, long = Parts(), bytes(range(256)) * 64
    body = dump(Call("operator:add", (long, b"end")), parts)
    app = RayApp(service, (1, 1), np.frombuffer(b"".join(parts.found), np.uint8))
    assert len(body) < 1000
    assert served(app, body) == (True, long + b"end")
    later = RayApp(service, (1, 2), np.zeros(len(long), np.uint8))
    assert served(later, body) == (True, bytes(len(long)) + b"end")


def test_what_fails_in_an_actor_comes_back_as_text_and_our_own_errors_as_they_are():
    service = Service(app="operator:add", run_id=1, run_config={})
    is_well, text = served(RayApp(service), pickle.dumps(Call("operator:truediv", (1, 0))))
    assert not is_well
    assert text.endswith("ZeroDivisionError: division by zero\n")
    service = Service(app="operator:add", run_id=1, run_config={}, warm_up="no.such:module")
    assert "ModuleNotFoundError" in served(RayApp(service), b"")[1]


@pytest.fixture
def scratch():
    """A folder with a name short enough for sockets in it."""
    with tempfile.TemporaryDirectory(prefix="f-", dir="/tmp") as folder:
        yield Path(folder)


def simulation(scratch, file, out, *options):
    command = [sys.executable, "-m", "fedsys.cli.main", "simulate", str(file), "--out", str(out)]
    return subprocess.Popen(
        [*command, "--workers", "2", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(scratch)},
        start_new_session=True,
    )


def descendants(pid):
    """Numbers and titles of all processes below this one."""
    parents, titles = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int(
                (folder / "stat").read_text().rpartition(")")[2].split()[1]
            )
            titles[int(folder.name)] = (folder / "cmdline").read_bytes().decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
    found, fresh = {}, {pid}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh}
        found |= {child: titles[child] for child in fresh}
    return found


def wait_until_gone(pids):
    until_s = time.monotonic() + 30
    while time.monotonic() < until_s:
        left = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        if not left:
            return
        time.sleep(0.1)
    pytest.fail(f"processes {left} are still there")


def bytes_of(folder):
    return [(folder / name).read_bytes() for name in ("rounds.jsonl", "model.safetensors")]


def ended(process):
    """Exit status and what was printed since."""
    output, _ = process.communicate(timeout=LIMIT_S)
    return process.returncode, output


@pytest.mark.usefixtures("needs_ray")
def test_ray_gives_the_same_bytes_though_an_actor_is_killed_and_leaves_nothing(
    file, tmp_path, scratch
):
    with (
        simulation(scratch, file, tmp_path / "here") as whole,
        simulation(scratch, file, tmp_path / "ray", "--engine", "ray") as killed,
    ):
        for line in killed.stdout:
            if line.startswith("round 1/"):
                break
        below = descendants(killed.pid)
        actors = [pid for pid, title in below.items() if title.startswith("ray::ClientApp")]
        assert len(actors) == 2
        os.kill(actors[0], signal.SIGKILL)
        code, output = ended(killed)
        assert code == 0, output
        assert ended(whole)[0] == 0
    assert bytes_of(tmp_path / "ray" / "r-1") == bytes_of(tmp_path / "here" / "r-1")
    wait_until_gone(below)
    assert not list(scratch.glob("fedsys-ray-*"))


@pytest.mark.slow
@pytest.mark.usefixtures("needs_ray")
def test_ctrl_c_ends_after_the_round_without_leftovers_and_processes_finish_the_run(
    file, tmp_path, scratch
):
    with (
        simulation(scratch, file, tmp_path / "whole") as whole,
        simulation(scratch, file, tmp_path / "runs", "--engine", "ray") as stopped,
    ):
        for line in stopped.stdout:
            if line.startswith("round 1/"):
                break
        below = descendants(stopped.pid)
        os.killpg(stopped.pid, signal.SIGINT)  # as a terminal does
        assert ended(stopped)[0] == 130
        assert ended(whole)[0] == 0
    assert len(below) > 4
    wait_until_gone(below)
    assert not (tmp_path / "runs" / "r-1" / "result.json").exists()
    with simulation(scratch, file, tmp_path / "runs", "--resume") as resumed:
        assert ended(resumed)[0] == 0
    assert bytes_of(tmp_path / "runs" / "r-1") == bytes_of(tmp_path / "whole" / "r-1")
