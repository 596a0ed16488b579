"""Real packets across a link in the kernel: rate, delay, loss, traces, congestion control."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedsys.errors import ConfigError
from netem.kernel import probe
from netem.kernel.path import KernelPath, why_not
from netem.link import Direction, Link
from netem.loss import loss_chain
from netem.rate import RateCurve, steps

UDP_ENDS = [sys.executable, str(Path(__file__).with_name("udp_ends.py"))]
HEADERS_BYTES = 28
"""IPv4 and UDP."""
SIGMAS = 4.5

pytestmark = pytest.mark.net


def link(bps=1e9, **options):
    curve = RateCurve.constant(bps) if isinstance(bps, float) else bps
    both = Direction(curve=curve, **options)
    return Link(up=both, down=both)


def path(wanted, mechanism="", **options):
    """A path for ``wanted``; skips with the reason where this kernel has none of that mechanism."""
    if mechanism == "netem" and (reason := probe.why_not("netem")):
        pytest.skip(f"kernel level: no netem: {reason}")
    options = {**options, "force_tun": True} if mechanism == "tun" else options
    reason = why_not(wanted, **options)
    if reason is not None:
        pytest.skip(f"kernel level: {reason}")
    return KernelPath(wanted, seed=1, **options)


def stream(across, count, size_bytes, idle_s=1.0):
    """Send a burst of packets up; rows of (number, seconds, bytes) as they came, float64 [k, 3]."""
    argv = across.server_command([*UDP_ENDS, "sink", str(count), str(idle_s)])
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as sink:
        assert sink.stdout.readline() == b"ready\n"
        blast = [*UDP_ENDS, "blast", across.server_address, str(count), str(size_bytes)]
        subprocess.run(across.client_command(blast), check=True)
        out, _ = sink.communicate(timeout=60)
    return np.array(json.loads(out), np.float64).reshape(-1, 3)


@pytest.mark.parametrize("mechanism", ["tbf", "tun"])
def test_rate_counts_ip_packets_within_two_percent(mechanism):
    with path(link(2e6), mechanism) as across:
        came = stream(across, 160, 1472)

    assert len(came) == 160
    seconds = came[-1, 1] - came[10, 1]
    bits = 8 * (came[11:, 2] + HEADERS_BYTES).sum()
    assert bits / seconds == pytest.approx(2e6, rel=0.02)


@pytest.mark.parametrize("mechanism", ["netem", "tun"])
def test_a_round_trip_takes_both_delays(mechanism):
    with path(link(delay_ms=20), mechanism) as across:
        argv = across.server_command([*UDP_ENDS, "echo"])
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as echo:
            assert echo.stdout.readline() == b"ready\n"
            ping = across.client_command([*UDP_ENDS, "ping", across.server_address, "21"])
            times_s = json.loads(subprocess.run(ping, check=True, stdout=subprocess.PIPE).stdout)
            echo.terminate()

    # Two ordinary processes are woken on the way, which a busy machine may delay.
    assert 0.040 <= min(times_s) <= 0.042
    assert np.median(times_s) <= 0.080


@pytest.mark.parametrize("mechanism", ["netem", "tun"])
def test_losses_come_as_often_and_as_long_as_the_chain_says(mechanism):
    count, loss, burst = 4000, 0.1, 4.0
    wanted = link(200e6, loss_fraction=loss, loss_burst_packets=burst)
    with path(wanted, mechanism) as across:
        came = stream(across, count, 100)

    lost = np.ones(count, bool)
    lost[came[:, 0].astype(int)] = False
    assert (np.diff(came[:, 0]) > 0).all()
    begins, ends = loss_chain(loss, burst)
    r = 1 - begins - ends
    sigma = math.sqrt(loss * (1 - loss) / count * (1 + r) / (1 - r))
    assert abs(lost.mean() - loss) < SIGMAS * sigma
    bursts = int((lost[1:] & ~lost[:-1]).sum() + lost[0])
    assert abs(lost.sum() / bursts - burst) < SIGMAS * math.sqrt((1 - ends) / ends**2 / bursts)
    if across.report:
        assert across.report["up"]["lost"] == lost.sum()
        assert across.report["up"]["dropped"] == 0


def test_a_replayed_curve_delivers_its_sum_at_every_moment():
    curve = steps([0, 0.3, 0.5, 0.9], [4e6, 1e6, 6e6, 2e6], period_s=1.1).cut([(0.6, 0.75)])
    total_bits = curve.bits_between(0, 1.9)
    with path(link(curve)) as across:
        came = stream(across, int(total_bits / 12_000), 1472)

    # The first packet of the curve's time 0 has taken its bits by the time it comes out.
    now_s = came[:, 1] - came[0, 1] + curve.finish_s(0, 12_000)
    bits = np.cumsum(8 * (came[:, 2] + HEADERS_BYTES))
    want = np.array([curve.bits_between(0, t) for t in now_s])
    assert np.abs(bits - want).max() <= 0.03 * total_bits


@pytest.mark.parametrize("mechanism", ["tbf", "tun"])
def test_a_short_queue_drops_the_tail(mechanism):
    with path(link(1e6, queue_bytes=30_000), mechanism) as across:
        came = stream(across, 60, 1472)

    assert 19 <= len(came) <= 24
    assert came[:, 0].tolist()[:19] == list(range(19))


@pytest.mark.parametrize("mechanism", ["tbf", "tun"])
def test_a_post_takes_its_bits_and_uses_the_congestion_control_of_the_link(mechanism):
    with path(link(4e6), mechanism) as across:
        for tcp in ("cubic", "bbr"):
            seconds = across.post(100_000, tcp)
            least_s = 8 * 100_000 * 1500 / 1448 / 4e6
            assert 0.97 * least_s <= seconds <= least_s + 0.5  # a busy machine only adds


def test_a_link_that_this_process_cannot_have_is_refused_in_one_line():
    reason = why_not(link(delay_ms=5, jitter_ms=5))
    if reason is None:
        pytest.skip("this kernel and user have all that a link can ask")
    with pytest.raises(ConfigError, match=r"^kernel level: [^\n]+$"):
        KernelPath(link(delay_ms=5, jitter_ms=5), 1)
