"""``fedsys netns`` as a user meets it: one line for what is impossible, and no root needed."""

import functools
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from fedsys.cli.main import run
from netem.kernel import probe
from netem.kernel.path import why_not
from netem.spec import link_from_text

ROOT = Path(__file__).parents[3]
RATE = "constant(up_bps=4e6, down_bps=4e6)"
FETCH = "import os, urllib.request as u; u.urlopen(f'http://{os.environ[\"FEDSYS_SERVER\"]}:8000')"

pytestmark = pytest.mark.net


@functools.cache
def python_of_nobody():
    """Environment and start of a Python that a user without rights can run, or a skip."""
    as_nobody = []
    if probe.is_root():
        # setpriv itself starts its command with the rights of root, env does not
        as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env"]
        if shutil.which(as_nobody[0]) is None:
            pytest.skip("no command setpriv")
    path = f"{ROOT}:{sysconfig.get_path('purelib')}"
    environment = {**os.environ, "PYTHONPATH": path, "HOME": "/nonexistent", "OMP_NUM_THREADS": "1"}
    for python in (sys.executable, "/usr/bin/python3"):
        tried = [*as_nobody, python, "-c", "import fedsys.rng"]
        with_reason = {"cwd": "/", "env": environment, "capture_output": True, "check": False}
        if subprocess.run(tried, **with_reason).returncode == 0:
            return environment, [*as_nobody, python]
    pytest.skip("no Python here that a user without rights can run fedsys with")


def as_nobody(*arguments):
    environment, python = python_of_nobody()
    command = [*python, "-m", "fedsys.cli.main", "netns", "run", "--link", RATE, *arguments]
    return subprocess.run(
        command, cwd="/", env=environment, capture_output=True, text=True, check=False
    )


def test_without_root_a_rate_is_possible_with_a_server_at_the_far_end():
    environment, python = python_of_nobody()
    ready = [*python[:-1], *probe.IN_USER_NAMESPACE, "sh", "-ec", probe.TRIALS["tbf"][0]]
    tried = subprocess.run(ready, cwd="/", env=environment, capture_output=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"no user namespace with a rate limiter: {tried.stderr.decode()}")
    python = python[-1]
    done = as_nobody("--server", f"{python} -m http.server 8000", "--", python, "-c", FETCH)

    assert done.returncode == 0, done.stderr
    assert "by tbf: up 4 Mbit/s, down 4 Mbit/s" in done.stderr


def test_without_root_the_host_as_far_end_is_refused_in_one_line():
    done = as_nobody("--", "true")

    assert done.returncode == 2
    assert done.stderr.startswith("fedsys: error: netns run: without root")
    assert len(done.stderr.splitlines()) == 1


def test_a_bad_link_is_one_line_and_exit_code_2(capsys):
    assert run(["netns", "run", "--link", "ltee", "--dry-run", "--", "true"]) == 2

    assert capsys.readouterr().err.startswith("fedsys: error: no link 'ltee'")


def test_a_server_command_that_no_shell_would_read_is_refused(capsys):
    arguments = ["netns", "run", "--link", RATE, "--server", "a 'b", "--dry-run", "--", "true"]

    assert run(arguments) == 2
    assert "--server: No closing quotation" in capsys.readouterr().err


def test_a_dry_run_prints_notes_as_comments_and_options_of_the_command_as_they_are(capsys):
    reason = why_not(link_from_text(RATE, 1, 1))
    if reason is not None:
        pytest.skip(f"kernel level: {reason}")
    assert run(["netns", "run", "--link", RATE, "--dry-run", "ls", "--link", "-l"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"# {RATE} by tbf: up 4 Mbit/s")
    assert any(line.endswith(" -- ls --link -l") for line in lines)


def test_probe_prints_a_row_for_each_capability(capsys):
    assert run(["netns", "probe"]) == 0

    shown = capsys.readouterr().out
    assert all(name in shown for name in probe.TRIALS)
    assert "congestion control: " in shown
