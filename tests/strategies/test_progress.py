"""What a round is worth: the model on values worked out by hand, and learning its figures."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsys.progress import DELAY, PLAIN_EXPONENT, REACH_STEPS
from fedsys.types import ClientPlan, ClientReport, RoundPlan, RoundRecord
from strategies._offers import BY_SPEC, LADDER, Offer
from strategies._progress import REACH_DECAYS, Progress, decay_steps

EXACT, HALF = LADDER[0], Offer("half", 16, 0.5)
KNOWN = Progress(reach_steps=60.0, disagreement=0.0, shape=0.0)


def record_of(*reports, agreement=None, uplink="none"):
    clients = tuple(
        ClientPlan(node_id=r.node_id, local_steps=r.local_steps, lr=0.1, uplink=uplink, reason="")
        for r in reports
    )
    plan = RoundPlan(round=1, clients=clients, downlink="none", deadline_s=None, reason="")
    return RoundRecord(
        round=1, plan=plan, reports=reports, start_s=0.0, end_s=1.0, downlink_bytes=0,
        uplink_bytes=0, train_loss=None, step_norm=None, agreement=agreement,
    )  # fmt: skip


def report_of(node=1, **fields):
    known = {"accepted": True, "reason": "", "examples": 10, "local_steps": 40}
    return ClientReport(node_id=node, **known | fields)


@pytest.mark.parametrize("x", [0.1, 1.0, 5.0])
def test_the_decay_is_found_again_in_the_mean_of_an_exponential(x):
    ratio = (1 - math.exp(-x)) / x
    assert decay_steps(ratio, 80.0) == pytest.approx(80 / x, rel=1e-6)


def test_a_mean_loss_that_did_not_fall_gives_a_long_but_finite_decay():
    assert 10 < decay_steps(1.5, 1.0) < 100


def test_rounds_by_hand():
    # 1 + 60 / 20 = 4 with exact codecs. Half of an update dropped is one round late, each way.
    assert KNOWN.rounds(20, EXACT, EXACT, clients=10) == 4
    assert KNOWN.rounds(20, HALF, EXACT, clients=10) == pytest.approx(4 + DELAY)
    assert KNOWN.rounds(20, EXACT, HALF, clients=10) == pytest.approx(4 + DELAY)
    # A client that comes every third round is three rounds late ...
    assert KNOWN.rounds(20, HALF, EXACT, clients=10, gap=3) == pytest.approx(4 + 3 * DELAY)
    # ... but nobody loses more by lateness than by never getting it.
    lost = 4 * 0.5**-PLAIN_EXPONENT
    assert KNOWN.rounds(20, HALF, EXACT, clients=10, gap=99) == pytest.approx(lost)
    assert KNOWN.rounds(20, HALF, EXACT, clients=10, feedback=False) == pytest.approx(lost)


def test_fewer_clients_need_more_rounds_where_they_disagree():
    torn = Progress(reach_steps=60.0, disagreement=6.0)
    few, many = (torn.rounds(60, EXACT, EXACT, clients=n) for n in (3, 6))
    assert few / many == pytest.approx(3 / 2)


@given(
    steps=st.integers(1, 500),
    up=st.sampled_from(LADDER),
    down=st.sampled_from(LADDER),
    reach=st.floats(4, 2000),
)
def test_steps_help_less_than_in_proportion_and_error_never_helps(steps, up, down, reach):
    known = Progress(reach_steps=reach)
    one = known.rounds(steps, up, down, clients=10)
    assert one / 2 <= known.rounds(2 * steps, up, down, clients=10) <= one
    assert known.rounds(steps, EXACT, down, clients=10) <= one
    assert known.rounds(steps, up, EXACT, clients=10) <= one


def test_steps_have_an_optimum_where_few_of_many_take_part():
    # 1 + S/s + (D/K)(1 - drawn) s/S is least at s = S / sqrt((D/K)(1 - drawn)).
    torn = Progress(reach_steps=60.0, disagreement=10.0)
    best = min(range(1, 400), key=lambda s: torn.rounds(s, EXACT, EXACT, clients=10, drawn=0.1))
    assert best == pytest.approx(60 / math.sqrt(0.9), abs=1)
    everybody = [torn.rounds(s, EXACT, EXACT, clients=10) for s in range(1, 400)]
    assert everybody == sorted(everybody, reverse=True)


@pytest.mark.parametrize("counted", [(10, 10, 10, 10, 10), (16, 16, 32, 64, 192)])
@pytest.mark.parametrize("true", [1.0, 6.0, 15.0])
def test_disagreement_is_found_again_whatever_the_examples(counted, true):
    """What is orthogonal among updates with weights p is in their mean with sum p^2 of its size."""
    shares = [one / sum(counted) for one in counted]
    left = sum(p * p for p in shares)
    agreement = (1 + true * left) / (1 + true)
    reports = [report_of(node, examples=one) for node, one in enumerate(counted)]
    known = Progress(disagreement=true)
    assert known.seen(record_of(*reports, agreement=agreement)).disagreement == pytest.approx(true)


def test_a_late_update_counts_for_less_in_the_disagreement_too():
    """Three rounds late it counts half, like one of half the examples."""
    late = [report_of(1, examples=20, staleness=3), report_of(2, examples=10)]
    equal = [report_of(1, examples=10), report_of(2, examples=10)]
    found, expected = (Progress().seen(record_of(*r, agreement=0.8)) for r in (late, equal))
    assert found.disagreement == pytest.approx(expected.disagreement)


def test_reach_follows_the_losses_of_the_clients():
    ratio = (1 - math.exp(-4.0)) / 4.0
    known = Progress(reach_steps=20.0)
    for _ in range(20):
        known = known.seen(record_of(report_of(first_loss=2.0, train_loss=2.0 * ratio)))
    assert known.reach_steps == pytest.approx(REACH_DECAYS * 40 / 4, rel=1e-3)


def test_reach_does_not_fall_when_clients_fit_their_own_data_again_ever_sooner():
    known, reaches = Progress(), []
    for steps in (40, 20, 10, 5):
        ratio = (1 - math.exp(-4.0)) / 4.0
        report = report_of(local_steps=steps, first_loss=2.0, train_loss=2.0 * ratio)
        known = known.seen(record_of(report))
        reaches.append(known.reach_steps)
    first = math.sqrt(REACH_STEPS * REACH_DECAYS * 40 / 4)
    assert reaches == pytest.approx([first] * 4, rel=1e-6)


def test_disagreement_follows_the_agreement_of_the_updates():
    # Two clients, true mean m and noise of variance 3 m^2 each: the square of their mean is
    # (1 + 3 / 2) m^2 and their mean square 4 m^2.
    known = Progress()
    for _ in range(20):
        known = known.seen(record_of(report_of(1), report_of(2), agreement=2.5 / 4))
    assert known.disagreement == pytest.approx(3.0, rel=1e-3)


def test_the_error_of_one_quantizer_tells_that_of_the_others():
    known = Progress()
    for _ in range(20):
        known = known.seen(record_of(report_of(nmse=0.1), uplink="ecq(1)"))
    assert known.nmse(BY_SPEC["ecq(1)"]) == pytest.approx(0.1, rel=1e-3)
    assert known.nmse(BY_SPEC["ecq(0.25)"]) < BY_SPEC["ecq(0.25)"].nmse
    assert known.nmse(BY_SPEC["int8"]) == BY_SPEC["int8"].nmse


@pytest.mark.parametrize(
    "report",
    [
        report_of(),
        report_of(first_loss=1.0, train_loss=2.0),
        report_of(first_loss=0.0, train_loss=0.0),
        report_of(local_steps=1, first_loss=1.0, train_loss=1.0),
        report_of(nmse=0.0),
        report_of(nmse=1.0),
    ],
)
def test_reports_that_tell_nothing_change_nothing(report):
    assert Progress().seen(record_of(report, uplink="ecq(1)")) == Progress()
