"""Losses as gaps and runs are the chain that a walk over packets would make."""

import itertools
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netem.loss import loss_chain, loss_runs


def runs_of(loss, burst, n, seed=1):
    return list(itertools.islice(loss_runs(np.random.default_rng(seed), loss, burst), n))


@pytest.mark.parametrize(
    ("loss", "burst"), [(0.01, 1.0), (0.03, 4.0), (0.3, 1.0), (0.2, 3.0), (0.001, 20.0)]
)
def test_loss_and_burst_are_what_was_asked(loss, burst):
    runs = runs_of(loss, burst, 20_000)
    lost = [after - first for first, after in runs]

    assert sum(lost) / runs[-1][1] == pytest.approx(loss, rel=0.05)
    assert statistics.mean(lost) == pytest.approx(max(burst, 1 / (1 - loss)), rel=0.03)


def test_runs_are_those_of_a_walk_packet_by_packet():
    begins, ends = loss_chain(0.05, 3.0)
    rng, bad, gaps, lengths, since, length = np.random.default_rng(2), False, [], [], 0, 0
    for draw in rng.random(400_000):
        was_bad, bad = bad, (draw >= ends) if bad else (draw < begins)
        if bad and not was_bad:
            gaps.append(since)
        since = 0 if bad else since + 1
        if was_bad and not bad:
            lengths.append(length)
        length = length + 1 if bad else 0
    runs = runs_of(0.05, 3.0, 6000)
    drawn_gaps = [second[0] - first[1] for first, second in itertools.pairwise(runs)]

    assert statistics.mean(drawn_gaps) == pytest.approx(statistics.mean(gaps), rel=0.05)
    assert statistics.stdev(drawn_gaps) == pytest.approx(statistics.stdev(gaps), rel=0.05)
    assert min(drawn_gaps) == min(gaps) == 1
    assert statistics.mean(b - a for a, b in runs) == pytest.approx(
        statistics.mean(lengths), rel=0.05
    )


def test_short_bursts_mean_independent_losses():
    assert loss_chain(0.25, 1.0) == pytest.approx((0.25, 0.75))
    assert loss_chain(0.25, 1.2) == pytest.approx((0.25, 0.75))
    assert loss_chain(0.25, 4.0) == pytest.approx((1 / 12, 1 / 4))


@given(loss=st.floats(1e-6, 0.9), burst=st.floats(1, 100), seed=st.integers(0, 99))
def test_runs_ascend_and_never_touch(loss, burst, seed):
    runs = runs_of(loss, burst, 200, seed)

    assert all(first < after for first, after in runs)
    assert all(one[1] < two[0] for one, two in itertools.pairwise(runs))
