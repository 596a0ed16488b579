"""What is read off a round, on rounds small enough to see through."""

import numpy as np
import pytest

from fedsys.types import ClientReport
from strategies._signals import (
    Pace,
    Paces,
    mean_energy,
    overhead_bytes,
    pace_of,
    received_loss,
    slowest,
    weighted,
)


def report(node, **figures):
    return ClientReport(**{"node_id": node, "accepted": True, "reason": ""} | figures)


class Record:
    def __init__(self, *reports):
        self.reports = reports


def test_a_mean_is_weighted_by_examples_and_leaves_out_what_is_not_known():
    assert weighted([(1, 4.0), (3, 8.0), (5, None)]) == 7.0
    assert weighted([(5, None)]) is None
    assert weighted([]) is None


def test_losses_and_norms_of_refused_updates_do_not_count():
    record = Record(
        report(1, examples=1, first_loss=2.0, update_norm=3.0),
        report(2, examples=3, first_loss=4.0, update_norm=1.0),
        report(3, examples=9, first_loss=9.0, update_norm=9.0, accepted=False),
    )
    assert received_loss(record) == 3.5
    # (1 * 9 + 3 * 1) / 4
    assert mean_energy(record) == 3.0


def test_the_overhead_is_the_median_of_what_came_beyond_what_was_expected():
    record = Record(
        report(1, uplink_bytes=110),
        report(2, uplink_bytes=230),
        report(3, uplink_bytes=990),
        report(4, uplink_bytes=9999, accepted=False),
    )
    expected = {1: 100.0, 2: 200.0, 3: 300.0, 4: 0.0}
    assert overhead_bytes(record, expected, 5.0) == 30.0
    assert overhead_bytes(record, dict.fromkeys(expected, 1e6), 5.0) == 0.0
    assert overhead_bytes(Record(), expected, 5.0) == 5.0


def test_a_pace_is_the_time_of_a_step_and_all_the_rest():
    assert pace_of(report(1, train_s=2.0, local_steps=4, arrival_s=5.0)) == Pace(0.5, 3.0)
    assert pace_of(report(1, train_s=2.0, local_steps=4)) is None
    assert pace_of(report(1, arrival_s=2.0, local_steps=4)) is None
    assert pace_of(report(1, arrival_s=2.0, train_s=1.0)) is None


def test_the_slowest_is_the_accepted_client_that_arrived_last():
    record = Record(
        report(1, train_s=1.0, local_steps=10, arrival_s=4.0),
        report(2, train_s=3.0, local_steps=10, arrival_s=3.5),
        report(3, train_s=9.0, local_steps=10, arrival_s=99.0, accepted=False),
    )
    assert slowest(record) == Pace(0.1, 3.0)
    assert slowest(Record()) is None


def test_paces_are_halfway_between_old_and_new_and_the_mean_stands_for_who_was_not_seen():
    paces = Paces().seen([report(1, train_s=1.0, local_steps=10, arrival_s=2.0)])
    paces = paces.seen(
        [
            report(1, train_s=3.0, local_steps=10, arrival_s=6.0),
            report(2, train_s=4.0, local_steps=10, arrival_s=4.0),
        ]
    )
    step_s, exchange_s = paces.of([1, 2, 9])
    np.testing.assert_allclose(step_s, [0.2, 0.4, 0.3])
    np.testing.assert_allclose(exchange_s, [2.0, 0.0, 1.0])


def test_before_any_reply_a_pace_is_a_guess():
    step_s, exchange_s = Paces().of([1, 2])
    assert (step_s > 0).all()
    assert exchange_s.tolist() == [0.0, 0.0]


def test_a_reply_without_times_changes_no_pace():
    paces = Paces({1: Pace(0.1, 1.0)})
    assert paces.seen([report(1)]).nodes == pytest.approx(paces.nodes)
