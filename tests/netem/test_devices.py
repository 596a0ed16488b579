"""Device profiles: what a step costs, and how nodes differ."""

import math

import numpy as np
import pytest

from fedsys.errors import ConfigError
from netem.devices import DEVICES, available_devices, device_for


def test_a_step_costs_overhead_and_arithmetic():
    device = device_for("laptop", {"flops_per_s": 50e9, "overhead_ms": 4.0}, 1, 1)

    assert device.step_s(100e9) == 2.004


def test_instant_takes_no_time():
    assert device_for("instant", {}, 1, 1).step_s(1e15) == 0.0


def test_named_devices_are_ordered_as_anyone_would_expect():
    slowest_first = ["raspberry-pi-zero-2", "raspberry-pi-4", "laptop", "gpu-server", "instant"]
    times_s = [device_for(name, {}, 1, 1).step_s(1e9) for name in slowest_first]

    assert times_s == sorted(times_s, reverse=True)
    assert dict(available_devices()).keys() == DEVICES.keys()


def test_spread_makes_nodes_differ_and_the_seed_repeats_them():
    speeds = [device_for("laptop", {"spread": 0.5}, 1, n).flops_per_s / 60e9 for n in range(1000)]

    assert np.log(speeds).std() == pytest.approx(0.5, rel=0.1)
    assert np.median(speeds) == pytest.approx(1.0, rel=0.1)
    assert device_for("laptop", {"spread": 0.5}, 1, 3).flops_per_s / 60e9 == speeds[3]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("raspberry-pi4", {}, "did you mean 'raspberry-pi-4'"),
        ("laptop", {"flop_per_s": 1.0}, "did you mean 'flops_per_s'"),
        ("laptop", {"flops_per_s": 0.0}, "above 0"),
        ("laptop", {"flops_per_s": "fast"}, "a number"),
        ("laptop", {"overhead_ms": -1.0}, "0 or more"),
        ("laptop", {"spread": math.inf}, "0 or more"),
    ],
)
def test_a_wrong_device_is_refused(name, options, words):
    with pytest.raises(ConfigError, match=words):
        device_for(name, options, 1, 1)
