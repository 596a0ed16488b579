"""``fedsys netns run``: exit codes, and that nothing is left whatever ends it."""

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fedsys.errors import ConfigError, DeployError
from netem.kernel import probe
from netem.kernel.names import NAMED
from netem.kernel.path import KernelPath, why_not
from netem.kernel.run import Request, dry_run, plan, run
from netem.kernel.session import Session, clean
from netem.spec import link_from_text

RATE = "constant(up_bps=4e6, down_bps=4e6)"
DELAY = "constant(up_bps=4e6, down_bps=4e6, delay_ms=5)"
RUN = """
import sys
from netem.kernel.run import Request, run
sys.exit(run(Request(link=sys.argv[1], command=tuple(sys.argv[2:]))))
"""

pytestmark = pytest.mark.net


@pytest.fixture(params=[RATE, DELAY], ids=["rate", "delay"])
def text(request):
    needs(request.param)
    return request.param


def needs(text):
    reason = why_not(link_from_text(text, 1, 1))
    if reason is not None:
        pytest.skip(f"kernel level: {reason}")


def left_of(pid):
    """Names of namespaces and of interfaces here that process ``pid`` made."""
    named = [path.name for path in NAMED.iterdir()] if NAMED.is_dir() else []
    interfaces = [path.name for path in Path("/sys/class/net").iterdir()]
    ours = re.compile(rf"fedsys-{pid}-.*|fs{pid}n.*")
    return [name for name in (*named, *interfaces) if ours.fullmatch(name)]


@pytest.fixture
def sleeper():
    """A run in a process of its own whose command sleeps, and the command's process number."""
    needs(DELAY)
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, DELAY, "sh", "-c", "echo $$; exec sleep 60"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    command = int(process.stdout.readline())
    assert left_of(process.pid)
    yield process, command
    process.kill()
    clean()
    process.communicate(timeout=30)


@pytest.mark.parametrize("code", [0, 7])
def test_the_exit_code_is_the_commands_and_nothing_is_left(text, code, capfd):
    assert (
        run(Request(link=text, command=("sh", "-c", f"echo $FEDSYS_SERVER; exit {code}"))) == code
    )

    shown = capfd.readouterr()
    assert re.fullmatch(r"198\.1[89]\.\d+\.\d+\n", shown.out)
    assert "congestion control: cubic" in shown.err
    assert not left_of(os.getpid())


def test_a_command_that_a_signal_ends_or_that_is_missing_gives_the_codes_of_a_shell():
    needs(RATE)

    assert run(Request(link=RATE, command=("sh", "-c", "kill -9 $$"))) == 137
    assert run(Request(link=RATE, command=("no-such-command",))) == 127
    assert not left_of(os.getpid())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_and_undoes_everything(sleeper, number):
    process, command = sleeper
    os.kill(process.pid, number)
    if number == signal.SIGINT:  # a terminal would tell the command as well
        os.kill(command, number)

    assert process.wait(timeout=30) == 128 + number
    assert not left_of(process.pid)
    assert not is_alive(command)


def test_what_a_killed_run_left_is_removed_with_its_processes_and_nothing_else(sleeper):
    process, orphan = sleeper
    other = f"fedsys-other-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", other], check=True)
    try:
        process.kill()
        process.wait(timeout=30)
        clean()  # another run on this machine may be doing so as well
        assert not left_of(process.pid)
        assert (NAMED / other).exists()
        assert not is_alive(orphan)
    finally:
        subprocess.run(["ip", "netns", "del", other], check=True)


def is_alive(pid):
    """Whether ``pid`` runs; one that waits only to be collected does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_a_set_up_that_fails_half_way_is_undone(text):
    layout, _ = plan(Request(link=text, command=("true",)))
    session = Session(replace(layout, tcp="no-such-control"), say=print)

    with pytest.raises(DeployError, match="no-such-control"):
        session.open()
    assert not left_of(os.getpid())


def test_an_error_inside_the_block_undoes_the_path(text):
    def fail_inside():
        with KernelPath(link_from_text(text, 1, 1), 1):
            assert left_of(os.getpid())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    assert not left_of(os.getpid())


def test_what_the_command_leaves_running_is_ended_with_its_namespace():
    needs(RATE)
    begun = time.monotonic()
    assert run(Request(link=RATE, command=("sh", "-c", "sleep 300 > /dev/null 2>&1 &"))) == 0

    assert not left_of(os.getpid())
    assert time.monotonic() - begun < 60


def test_a_dry_run_changes_nothing_and_prints_shell():
    needs(DELAY)
    text, notes = dry_run(Request(link=DELAY, command=("true",), server=("sleep", "1")))

    assert "tun" in notes[0] or "netem" in notes[0]
    parsed = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
    assert (parsed.returncode, parsed.stderr) == (0, "")
    assert not left_of(os.getpid())


def test_the_printed_script_runs_and_leaves_nothing():
    needs(DELAY)
    text, _ = dry_run(Request(link=DELAY, command=("sh", "-c", "echo at $FEDSYS_SERVER")))
    done = subprocess.run(["bash", "-e"], input=text, text=True, capture_output=True, check=False)

    assert re.search(r"^at 198\.", done.stdout, re.MULTILINE), done.stderr
    assert done.returncode == 0, done.stderr
    assert not left_of(os.getpid())


def test_a_server_at_the_far_end_is_awaited_and_ended():
    needs(RATE)
    fetch = (
        "import os, urllib.request as u; u.urlopen('http://%s:8000' % os.environ['FEDSYS_SERVER'])"
    )
    request = Request(
        link=RATE,
        command=(sys.executable, "-c", fetch),
        server=(sys.executable, "-m", "http.server", "8000"),
    )

    assert run(request) == 0
    assert not left_of(os.getpid())


def test_bad_links_are_refused_before_anything_is_made():
    with pytest.raises(ConfigError, match="no link 'nonsense'"):
        run(Request(link="nonsense", command=("true",)))
    assert not left_of(os.getpid())


def test_every_capability_is_tried_and_a_missing_one_has_its_reason():
    found = {one.name: one for one in probe.capabilities()}

    assert {"netns", "veth", "tbf", "htb", "netem", "ifb", "tun"} <= found.keys()
    for one in found.values():
        assert one.reason is None or one.reason.strip()
        assert one.unprivileged_reason is None or one.unprivileged_reason.strip()
    assert not left_of(os.getpid())
