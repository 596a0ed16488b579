"""One direction, packet by packet, against what is known of queues and of Gilbert's chain."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsys.rng import rng_for
from netem.kernel.bottleneck import Bottleneck
from netem.kernel.pipe import Pipe
from netem.loss import loss_chain
from netem.rate import RateCurve, steps

SIGMAS = 4.5


def pipe(curve=1e6, *, delay_ms=0.0, jitter_ms=0.0, loss=0.0, burst=1.0, queue_bytes=1 << 30):
    return Pipe(
        curve=RateCurve.constant(curve) if isinstance(curve, float) else curve,
        delay_ms=delay_ms,
        jitter_ms=jitter_ms,
        loss_fraction=loss,
        loss_burst_packets=burst,
        queue_bytes=queue_bytes,
    )


def bottleneck(*args, seed=1, **options):
    return Bottleneck(pipe(*args, **options), rng_for(seed, "test"))


def test_packets_leave_one_after_another_at_the_rate_and_arrive_a_delay_later():
    way = bottleneck(12_000.0, delay_ms=250)

    dues = [way.take(0.0, 1500), way.take(0.0, 1500), way.take(5.0, 750)]

    assert dues == pytest.approx([1.25, 2.25, 5.75])


def test_a_full_queue_refuses_the_packet_that_would_not_fit_and_takes_it_once_there_is_room():
    way = bottleneck(12_000.0, queue_bytes=3000)

    assert [way.take(0.0, 1500) for _ in range(3)] == [1.0, 2.0, None]
    assert way.take(0.5, 1500) is None
    assert way.take(1.0, 1500) == 3.0
    assert (way.sent_packets, way.dropped_packets) == (3, 2)


def test_an_empty_queue_takes_a_packet_larger_than_itself():
    assert bottleneck(12_000.0, queue_bytes=100).take(0.0, 1500) == 1.0


def test_outages_and_loops_of_the_curve_hold_packets_and_a_dead_link_drops_them():
    curve = steps([0, 1], [12_000, 0], period_s=2)
    way = bottleneck(curve.cut([(2.0, 3.0)]))

    assert [way.take(0.0, 1500) for _ in range(3)] == pytest.approx([1.0, 5.0, 7.0])
    dead = bottleneck(steps([0, 1], [12_000, 0]))
    assert [dead.take(0.0, 1500), dead.take(0.0, 1500)] == [1.0, None]
    assert dead.dropped_packets == 1


@settings(max_examples=40)
@given(
    gaps=st.lists(st.floats(0, 0.1), min_size=1, max_size=60),
    sizes=st.lists(st.integers(1, 1500), min_size=60, max_size=60),
    jitter_ms=st.floats(0, 200),
)
def test_no_packet_overtakes_or_comes_before_its_bits_or_later_than_jitter_allows(
    gaps, sizes, jitter_ms
):
    way, plain = bottleneck(delay_ms=10, jitter_ms=jitter_ms), bottleneck(delay_ms=10)
    now_s, last_s, pairs = 0.0, 0.0, list(zip(gaps, sizes, strict=False))
    for gap_s, size_bytes in pairs:
        now_s += gap_s
        due_s, least_s = way.take(now_s, size_bytes), plain.take(now_s, size_bytes)
        assert due_s >= last_s
        assert least_s <= due_s <= least_s + jitter_ms / 1000 + 1e-9
        last_s = due_s


def test_jitter_of_packets_far_apart_is_uniform():
    way = bottleneck(math.inf, jitter_ms=100)
    extra_s = np.array([way.take(float(t), 100) - t for t in range(4000)])

    assert extra_s.min() >= 0
    assert extra_s.max() <= 0.1
    sigma_s = 0.1 / math.sqrt(12 * 4000)
    assert abs(extra_s.mean() - 0.05) < SIGMAS * sigma_s


@pytest.mark.parametrize(("loss", "burst"), [(0.01, 1), (0.2, 1), (0.05, 4), (0.01, 8), (0.4, 3)])
def test_losses_are_as_many_and_in_such_bursts_as_the_chain_says(loss, burst):
    count = 60_000
    way = bottleneck(math.inf, loss=loss, burst=float(burst))
    lost = np.array([way.take(0.0, 100) is None for _ in range(count)])
    begins, ends = loss_chain(loss, burst)

    # Variance of a mean over a two-state chain with correlation r between neighbours.
    r = 1 - begins - ends
    sigma = math.sqrt(loss * (1 - loss) / count * (1 + r) / (1 - r))
    assert abs(lost.mean() - loss) < SIGMAS * sigma
    bursts = int((lost[1:] & ~lost[:-1]).sum() + lost[0])
    want = max(burst, 1 / (1 - loss))
    sigma_burst = math.sqrt((1 - ends) / ends**2 / bursts)
    assert abs(lost.sum() / bursts - want) < SIGMAS * sigma_burst


def test_the_seed_decides_every_loss():
    def losses(seed):
        way = bottleneck(math.inf, loss=0.1, burst=2.0, seed=seed)
        return [way.take(0.0, 100) is None for _ in range(500)]

    assert losses(1) == losses(1)
    assert losses(1) != losses(2)
