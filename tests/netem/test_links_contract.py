"""Every link model and profile, present and future, keeps these promises."""

import math
from dataclasses import MISSING

import pytest

from fedsys.errors import ConfigError
from fedsys.options import defaults
from fedsys.registry import available, load
from netem.profiles import MODELS, PROFILES, available_links, link_for
from netem.transfer import plan_transfer

USEFUL = {"up_bps": 2e6, "down_bps": 9e6, "at_s": 5.0}
"""Values for options that have no default; a model with others needs them added here."""


@pytest.fixture(params=[*available(MODELS), *PROFILES])
def named(request, tmp_path):
    """A name and options that ``link_for`` takes."""
    name = request.param
    if name in PROFILES:
        return name, {}
    if name == "trace":
        path = tmp_path / "recorded"
        path.write_text("".join(f"{stamp}\n" for stamp in range(0, 4000, 5)))
        return name, {"up_file": str(path), "down_bps": 9e6}
    required = [key for key, default in defaults(load(MODELS, name)).items() if default is MISSING]
    return name, {key: USEFUL[key] for key in required}


def times_s(link, size_bytes=200_000, start_s=3.0):
    return [
        plan_transfer(link, way, size_bytes, start_s, seed=5, flow=(1, 2)).finish_s() - start_s
        for way in ("up", "down")
    ]


def test_same_seed_and_node_give_the_same_link(named):
    name, options = named

    assert times_s(link_for(name, options, 5, 1)) == times_s(link_for(name, options, 5, 1))


def test_transfers_end_and_larger_ones_not_earlier(named):
    name, options = named
    link = link_for(name, options, 5, 1)

    assert all(0 <= taken_s < math.inf for taken_s in times_s(link))
    assert all(
        small <= large for small, large in zip(times_s(link, 10_000), times_s(link), strict=True)
    )


def test_nodes_of_a_spread_link_differ(named):
    name, options = named
    if name == "perfect":
        pytest.skip("nothing is unequal about no network")
    taken = {tuple(times_s(link_for(name, {**options, "spread": 0.4}, 5, n))) for n in range(6)}

    assert len(taken) == 6


def test_help_text_says_what_it_is(named):
    name, _ = named
    text = dict(available_links())[name]

    assert len(text) > 40
    assert text[0] not in "`(["
    assert "  " not in text


def test_an_unknown_option_is_refused_with_the_nearest(named):
    name, options = named

    with pytest.raises(ConfigError, match=r"no option 'dealy_ms'; did you mean 'delay_ms'\?"):
        link_for(name, {**options, "dealy_ms": 1.0}, 5, 1)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("loss_fraction", 2.0, "loss_fraction must be"),
        ("delay_ms", -1.0, "0 or more"),
        ("jitter_ms", math.nan, "a number"),
        ("spread", -0.1, "0 or more"),
        ("tcp", "reno", "one of cubic, bbr, none"),
        ("tls", 1, "true or false"),
        ("outages", [[1, 2, 3]], "a list"),
        ("outages", [[5, 2]], "ascending"),
    ],
)
def test_a_wrong_value_is_one_line_that_names_link_and_option(named, option, value, words):
    name, options = named

    with pytest.raises(ConfigError, match=words) as caught:
        link_for(name, {**options, option: value}, 5, 1)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_outages_hold_in_both_directions(named):
    name, options = named
    link = link_for(name, {**options, "outages": [[0.0, 1000.0]]}, 5, 1)

    assert all(taken_s >= 997.0 for taken_s in times_s(link))
