"""The deadline: who is always in time is waited for, who rarely is is not."""

from fedsys.types import ClientReport
from strategies._waiting import ENOUGH, FACTORS, NO_LIMIT, Arrival, Punctuality


def reports(*arrivals_s):
    return [
        ClientReport(node_id=at, accepted=arrival_s is not None, reason="", arrival_s=arrival_s)
        for at, arrival_s in enumerate(arrivals_s)
    ]


def after(*rounds, deadline_s=None):
    known = Punctuality()
    for arrivals_s in rounds:
        known = known.seen(reports(*arrivals_s), last_s=10.0, deadline_s=deadline_s)
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


def test_those_who_never_come_are_not_waited_for_however_many_they_are():
    known = after([10.0] * 10 + [None] * 10, deadline_s=40.0)
    assert known.answering == 0.5
    assert known.factor(20) == FACTORS[0]


def test_who_came_after_a_short_deadline_is_not_known_and_a_longer_one_is_tried():
    cut = after([10.0] * 4 + [None] * 6, deadline_s=11.5)
    assert cut.factor(10) > FACTORS[0]
    tried = cut.seen(reports(*[10.0] * 4, *[None] * 6), last_s=10.0, deadline_s=40.0)
    assert tried.factor(10) == FACTORS[0]


def test_where_nobody_comes_the_next_round_waits_longer():
    known = after([10.0] * 10)
    later = known.seen(reports(*[None] * 10), last_s=10.0, deadline_s=12.0)
    assert later.wait_s > known.wait_s


def test_replies_without_a_time_tell_nothing():
    known = Punctuality()
    untimed = ClientReport(node_id=1, accepted=True, reason="")
    assert known.seen([untimed] * 20, last_s=10.0) == known


def test_what_replies_take_beyond_their_work_is_waited_for():
    known = after([60.0] * 20)
    assert known.wait_s == 50.0
    assert known.seen(reports(*[60.0] * 20), last_s=10.0).arrivals[-1] == Arrival(1.0)


def test_nodes_that_rarely_answer_in_time_do_not_shorten_the_round_for_a_few():
    # Two of twenty come at once, the others at three times the expected: their data count.
    assert after([10.0] * 2 + [30.0] * 18).factor(20) == FACTORS[-2]
