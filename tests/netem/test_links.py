"""What each link model promises beyond the common contract, and how names are resolved."""

import math

import numpy as np
import pytest

from fedsys.errors import ConfigError
from netem.profiles import PROFILES, link_for
from netem.rate import RateCurve

RATES = {"up_bps": 1e6, "down_bps": 4e6}


def mean_bps(curve: RateCurve) -> float:
    return curve.bits_between(0, curve.period_s) / curve.period_s


def test_step_multiplies_and_restores():
    curve = link_for("step", {**RATES, "at_s": 60, "factor": 0.25, "until_s": 90}, 1, 1).up.curve

    assert [curve.rate_at(now_s) for now_s in (0, 59.9, 60, 89.9, 90)] == [
        1e6, 1e6, 0.25e6, 0.25e6, 1e6,
    ]  # fmt: skip


def test_a_step_to_nothing_is_the_end():
    link = link_for("step", {**RATES, "at_s": 60, "factor": 0}, 1, 1)

    assert link.up.curve.finish_s(59.0, 2e6) == math.inf


def test_markov_spends_its_mean_share_in_each_state():
    options = {**RATES, "bad_fraction": 0.0, "mean_good_s": 30, "mean_bad_s": 10, "horizon_s": 4e5}
    curve = link_for("markov", options, 1, 1).up.curve

    assert mean_bps(curve) == pytest.approx(0.75e6, rel=0.03)
    assert set(curve.rate_bps) == {0.0, 1e6}


def test_fading_has_its_median_its_deviation_and_its_gaps():
    options = {**RATES, "sigma": 0.7, "correlation_s": 5, "horizon_s": 2e5, "mean_outage_s": 4}
    alive = link_for("fading", options, 1, 1).up.curve.rate_bps
    gaps = link_for("fading", {**options, "outage_fraction": 0.1}, 1, 1).up.curve

    assert np.median(alive) == pytest.approx(1e6, rel=0.05)
    assert np.log(alive).std() == pytest.approx(0.7, rel=0.05)
    assert np.corrcoef(np.log(alive[:-1]), np.log(alive[1:]))[0, 1] == pytest.approx(
        math.exp(-1 / 5), abs=0.02
    )
    width_s = np.diff(np.append(gaps.edge_s, gaps.period_s))
    assert width_s[gaps.rate_bps == 0].sum() / gaps.period_s == pytest.approx(0.1, rel=0.1)


def test_both_directions_fade_together():
    link = link_for("fading", RATES, 1, 1)

    np.testing.assert_allclose(link.down.curve.rate_bps / link.up.curve.rate_bps, 4.0)


def test_diurnal_is_slowest_at_its_busiest_hour():
    curve = link_for("diurnal", {**RATES, "busiest_h": 21, "depth_fraction": 0.6}, 1, 1).up.curve
    hour = 3600

    assert curve.rate_at(21 * hour) == pytest.approx(0.4e6, rel=0.01)
    assert curve.rate_at(9 * hour) == pytest.approx(1e6, rel=0.01)
    assert curve.rate_at(9 * hour) == curve.rate_at((9 + 24) * hour)


def test_handover_pauses_all_nodes_at_the_same_moments():
    curves = [link_for("handover", {**RATES, "gap_s": 0.2}, 1, node).up.curve for node in (1, 2)]

    for curve in curves:
        assert [curve.rate_at(now_s) for now_s in (15.0, 15.19, 30.0)] == [0.0, 0.0, 0.0]
        assert curve.rate_at(15.2) > 0
    assert curves[0].rate_at(20.0) != curves[1].rate_at(20.0)


def test_duty_cycle_is_on_for_its_share():
    curve = link_for("duty_cycle", {**RATES, "duty_fraction": 0.02, "period_s": 50}, 1, 1).up.curve

    assert mean_bps(curve) == pytest.approx(0.02e6)
    assert curve.finish_s(0.0, 5e6) == pytest.approx(5 * 50, abs=50)


def test_gilbert_elliott_loses_what_its_chain_loses():
    options = {**RATES, "good_to_bad_fraction": 0.01, "bad_to_good_fraction": 0.2}
    way = link_for("gilbert_elliott", {**options, "loss_bad_fraction": 0.6}, 1, 1).up
    rng, bad, lost, visits, n = np.random.default_rng(0), False, 0, 0, 400_000
    for draw, fate in zip(rng.random(n), rng.random(n), strict=True):
        bad, was_bad = (draw >= 0.2) if bad else (draw < 0.01), bad
        visits += bad and not was_bad
        lost += bad and fate < 0.6

    assert way.loss_fraction == pytest.approx(lost / n, rel=0.05)
    assert way.loss_burst_packets == pytest.approx(lost / visits, rel=0.05)


def test_spread_is_log_normal_around_the_named_rate():
    factors = [
        link_for("constant", {**RATES, "spread": 0.5}, 1, node).up.curve.rate_at(0) / 1e6
        for node in range(2000)
    ]

    assert np.median(factors) == pytest.approx(1.0, rel=0.05)
    assert np.log(factors).std() == pytest.approx(0.5, rel=0.05)


def test_options_replace_single_numbers_of_a_profile():
    plain, faster = link_for("adsl", {}, 1, 1), link_for("adsl", {"up_bps": 1.28e6}, 1, 1)

    assert faster.up.curve.rate_at(0) == pytest.approx(2 * plain.up.curve.rate_at(0))
    assert faster.down.curve.rate_at(0) == plain.down.curve.rate_at(0)


def test_every_profile_names_its_source():
    assert all(profile.source and profile.help for profile in PROFILES.values())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lte-drivign", "did you mean 'lte-driving'"),
        ("constnat", "did you mean 'constant'"),
        ("nowhere.at_all:Link", "cannot be loaded"),
        ("netem.link:Nothing", "cannot be loaded"),
    ],
)
def test_an_unknown_name_is_refused_with_help(name, words):
    with pytest.raises(ConfigError, match=words):
        link_for(name, {}, 1, 1)


def test_a_missing_option_is_named():
    with pytest.raises(ConfigError, match="link 'constant': needs down_bps"):
        link_for("constant", {"up_bps": 1e6}, 1, 1)


def test_a_class_of_the_users_own_is_a_link():
    link = link_for("netem.links.constant:Constant", RATES, 1, 1)

    assert link.up.curve.rate_at(0) == 1e6
