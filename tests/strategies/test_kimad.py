"""Kimad fills the seconds given with as many values as they carry."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsys.errors import ConfigError
from strategies._specs import sparsifier_bits
from strategies.kimad import Kimad


def fraction(client):
    return float(re.fullmatch(r"topk\((.+)\)\|int8", client.uplink)[1])


def settled(world, scene, node, upload_s, rounds=12, **options):
    watched = world(Kimad(upload_s=upload_s, **options), scene(2), node)
    watched.run(rounds)
    return watched


def test_the_share_by_hand(world, scene, node):
    # 0.1 s of floor and 100 kbit/s: 1.1 s carry 12,500 bytes, of which 2,000 are not values.
    # 8 * 10,500 / 17,226 = 4.876 bits per parameter; 8.06 f + entropy(f) = 4.876 at f = 0.481.
    watched = settled(world, scene, node(up_bps=1e5), 1.1)
    assert fraction(watched.plans[-1].clients[0]) == pytest.approx(0.481, rel=0.03)
    assert sparsifier_bits(0.481) == pytest.approx(4.876, rel=0.001)


@pytest.mark.parametrize("upload_s", [0.4, 1.0, 3.0])
@pytest.mark.parametrize("up_bps", [5e4, 1e5])
def test_an_upload_takes_the_seconds_given(world, scene, node, upload_s, up_bps):
    watched = settled(world, scene, node(up_bps=up_bps), upload_s)
    took_s = watched.records[-1].reports[0].upload_s
    is_whole = fraction(watched.plans[-1].clients[0]) == 1
    # The message of no values at all takes 0.1 s and 16,000 bits.
    least_s = 0.1 + 16_000 / up_bps
    if upload_s > least_s:
        assert took_s <= upload_s if is_whole else took_s == pytest.approx(upload_s, rel=0.05)


def test_a_faster_client_sends_more(world, scene, node):
    watched = settled(world, scene, lambda n: node(up_bps=3e4 * n), 1.0)
    slow, fast = (fraction(c) for c in watched.plans[-1].clients)
    assert slow < fast


def test_the_share_follows_the_bandwidth_in_the_next_round(world, scene, node):
    watched = settled(world, scene, node(up_bps=1e5), 1.0)
    before = fraction(watched.plans[-1].clients[0])
    watched.node = node(up_bps=3e4)
    watched.run(1)
    assert fraction(watched.run(1).clients[0]) < before / 2


def test_without_a_limit_the_first_round_sets_it(world, scene, node):
    watched = settled(world, scene, node(up_bps=1e5), None, first_fraction=0.1)
    assert watched.state.upload_s == watched.records[0].reports[0].upload_s
    assert fraction(watched.plans[-1].clients[0]) == pytest.approx(0.1, rel=0.1)


@settings(max_examples=15)
@given(up_bps=st.floats(1e2, 1e9), upload_s=st.floats(1e-3, 1e3))
def test_a_share_is_never_outside_its_bounds(world, scene, node, up_bps, upload_s):
    watched = settled(world, scene, node(up_bps=up_bps), upload_s, rounds=3)
    for plan in watched.plans:
        assert all(0.001 <= fraction(client) <= 1 for client in plan.clients)


@pytest.mark.parametrize("options", [{"upload_s": 0.0}, {"first_fraction": 0.0}])
def test_impossible_options_are_refused(options):
    (name,) = options
    with pytest.raises(ConfigError, match=name):
        Kimad(**options)
