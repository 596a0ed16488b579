"""``flwr run`` on Flower's own simulation gives the bytes of ``fedsys simulate``."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
EXPERIMENT = """
run = { name = "s", budget = { rounds = 3 } }
task = { options = { model = "mlp" } }
partition = { clients = 6 }
codec = { uplink = "topk(0.1)|int8", downlink = "int8" }
network = { link = "3g", dropout_fraction = 0.2 }
"""


@pytest.fixture
def scratch():
    """A folder with a name short enough for Ray's sockets, and no process that knows of it."""
    with tempfile.TemporaryDirectory(prefix="f-", dir="/tmp") as folder:
        yield Path(folder)
        end_processes_of(folder)


def end_processes_of(folder):
    """Flower leaves a SuperLink behind, and that has children."""
    mark = f"FLWR_HOME={folder}".encode()
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (process / "environ").read_bytes():
                    os.kill(int(process.name), number)
            except (FileNotFoundError, PermissionError, ProcessLookupError):
                continue
        time.sleep(2)


@pytest.mark.slow
@pytest.mark.net
def test_flwr_run_on_the_simulation_gives_the_same_bytes(scratch):
    pytest.importorskip("ray", reason="Ray is an extra: pip install 'fedsys[ray]'")
    (scratch / "s.toml").write_text(EXPERIMENT)
    (scratch / "run.toml").write_text(f"out = '{scratch}/out'\nexperiment = '''{EXPERIMENT}'''\n")
    (scratch / "config.toml").write_text(
        '[superlink]\ndefault = "sim"\n[superlink.sim]\naddress = ":local-in-memory:"\n'
    )
    environment = os.environ | {
        "FLWR_HOME": str(scratch),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": "39417",
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "RAY_TMPDIR": str(scratch),
        "OMP_NUM_THREADS": "1",
    }
    federation = "num-supernodes=6 client-resources-num-cpus=1"
    run = [BIN / "flwr", "run", ROOT, "sim", "--stream", "--federation-config", federation]
    here = [sys.executable, "-m", "fedsys.cli.main", "simulate", "s.toml", "--workers", "1"]
    printed = [
        subprocess.run(
            command, cwd=scratch, env=environment, capture_output=True, text=True, timeout=300
        ).stdout
        for command in ([*run, "--run-config", "run.toml"], here)
    ]
    for name in ("rounds.jsonl", "model.safetensors"):
        simulated = (scratch / "runs" / "s-1" / name).read_bytes()
        assert (scratch / "out" / name).read_bytes() == simulated, printed
