"""The deadline: who is always in time is waited for, who rarely is is not."""

from fedsys.types import ClientReport
from strategies._waiting import ENOUGH, FACTORS, NO_LIMIT, Punctuality


def reports(*arrivals_s):
    return [
        ClientReport(node_id=at, accepted=True, reason="", arrival_s=arrival_s)
        for at, arrival_s in enumerate(arrivals_s)
    ]


def after(*rounds):
    known = Punctuality()
    for arrivals_s in rounds:
        known = known.seen(reports(*arrivals_s), last_s=10.0)
    return known


def test_before_enough_is_known_nobody_is_given_up():
    assert after([10.0] * (ENOUGH - 1)).factor(10) == NO_LIMIT


def test_who_comes_as_predicted_gets_the_shortest_deadline():
    assert after([9.0, 10.0] * 10).factor(10) == FACTORS[0]


def test_all_a_little_late_are_waited_for():
    assert after([18.0] * 20).factor(10) == 2.0


def test_one_in_twenty_who_comes_very_late_is_not_waited_for():
    assert after([10.0] * 19 + [39.0]).factor(10) < 2.0


def test_half_of_the_updates_are_worth_some_more_waiting():
    assert after([10.0] * 10 + [14.0] * 10).factor(10) == 1.5


def test_what_never_came_counts_as_late_as_can_be():
    assert after([None] * 5 + [10.0] * 15).factor(10) == FACTORS[0]


def test_what_replies_take_beyond_their_work_is_waited_for():
    known = after([60.0] * 20)
    assert known.wait_s == 50.0
    assert known.seen(reports(*[60.0] * 20), last_s=10.0).ratios[-1] == 1.0


def test_nodes_that_rarely_answer_in_time_do_not_shorten_the_round_for_a_few():
    # Two of twenty come at once, the others at three times the expected: their data count.
    assert after([10.0] * 2 + [30.0] * 18).factor(20) == FACTORS[-2]
