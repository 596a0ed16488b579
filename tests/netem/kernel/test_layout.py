"""The commands of a path, without running them; choice of mechanism; names."""

import os
import subprocess

import pytest

from fedsys.errors import ConfigError
from netem.kernel.layout import Layout, address_pair, script
from netem.kernel.names import Names, born_ticks, stale_interfaces, stale_namespaces
from netem.kernel.pipe import mechanism_for, pipe_of, rate_only
from netem.kernel.session import box_command
from netem.kernel.shaping import shaping_commands
from netem.link import Direction
from netem.rate import RateCurve, steps

NAMES = Names(4_194_304, 123, 0)


def pipe(bps=1e6, **options):
    return pipe_of(Direction(curve=RateCurve.constant(bps), **options))


def layout(mechanism="tbf", server_in_netns=True):
    return Layout(
        names=NAMES,
        mechanism=mechanism,
        up=pipe(1e6, delay_ms=10, loss_fraction=0.1),
        down=pipe(2e6),
        tcp="cubic",
        server_in_netns=server_in_netns,
        client_address="198.18.0.2",
        server_address="198.18.0.1",
        box=box_command("trace(up_file='a b')", 1, 1, ("c", "s")),
    )


@pytest.mark.parametrize("mechanism", ["tbf", "htb", "netem", "tun"])
@pytest.mark.parametrize("server_in_netns", [True, False])
def test_the_script_is_shell_that_undoes_whatever_it_makes(mechanism, server_in_netns):
    text = script(
        layout(mechanism, server_in_netns),
        ["sh", "-c", 'echo "$X"'],
        ["python3", "-m", "http.server"] if server_in_netns else [],
    )

    parsed = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
    assert (parsed.returncode, parsed.stderr) == (0, "")
    lines = text.splitlines()
    for name in (NAMES.client_netns, *([NAMES.server_netns] if server_in_netns else [])):
        made, gone = f"ip netns add {name}", f"ip netns del {name}"
        assert lines.index(made) < lines.index(gone)
    assert (mechanism == "tun") == ('kill "$box"' in lines)


@pytest.mark.parametrize(
    ("pipes", "missing", "want"),
    [
        ([pipe()], (), "tbf"),
        ([pipe()], ("tbf",), "htb"),
        ([pipe()], ("tbf", "htb", "netem"), "tun"),
        ([pipe(), pipe(delay_ms=5)], (), "netem"),
        ([pipe(), pipe(loss_fraction=0.1)], ("netem",), "tun"),
        ([pipe(delay_ms=5, jitter_ms=1)], (), "tun"),
        ([pipe_of(Direction(curve=steps([0, 1], [1, 2])))], (), "tun"),
        ([pipe_of(Direction(curve=RateCurve.constant(1.0).cut([(1, 2)])))], (), "tun"),
        ([pipe(0.0)], (), "tun"),
    ],
)
def test_the_simplest_mechanism_that_the_kernel_has_is_taken(pipes, missing, want):
    found = mechanism_for(pipes, lambda name: "absent" if name in missing else None)

    assert found == want


def test_what_a_kernel_cannot_give_is_named_with_the_reason():
    with pytest.raises(ConfigError, match=r"delay and jitter .*\(tun: no device\)"):
        mechanism_for([pipe(delay_ms=5, jitter_ms=1)], lambda name: "no device")


def test_goodput_gets_its_headers_back_and_has_its_loss_already():
    direction = Direction(curve=RateCurve.constant(1448.0), layer="goodput", loss_fraction=0.1)
    found = pipe_of(direction)

    assert found.constant_bps == pytest.approx(1500)
    assert found.loss_fraction == 0


def test_rate_only_keeps_the_mean_rate():
    looping = pipe_of(Direction(curve=steps([0, 1], [3e6, 0], period_s=3), delay_ms=9))

    assert rate_only(looping).asks() == []
    assert rate_only(looping).constant_bps == pytest.approx(1e6)


def test_rates_count_ip_packets_and_no_rate_needs_no_queue():
    (command,) = shaping_commands(("tc",), "eth9", pipe(2e6), "tbf")

    assert " ".join(command).startswith(
        "tc qdisc add dev eth9 root handle 10: stab overhead -14 linklayer ethernet tbf "
        "rate 2000000bit burst 2000 limit"
    )
    assert shaping_commands(("tc",), "eth9", pipe(float("inf")), "tbf") == []


def test_netem_loses_as_the_chain_does_and_delays_before_the_rate():
    commands = shaping_commands(
        ("tc",), "eth9", pipe(delay_ms=12.5, loss_fraction=0.2, loss_burst_packets=4), "netem"
    )

    texts = [" ".join(command) for command in commands]
    assert "netem limit 100000 delay 12.500ms loss gemodel 6.250000% 25.000000% 100% 0%" in texts[0]
    assert "parent 1:1" in texts[1]
    assert "tbf" in texts[1]


def test_names_fit_the_kernel_and_tell_living_owners_from_dead_ones():
    assert len(NAMES.client_interface) <= 15
    own, other = Names.fresh(), Names.fresh()
    assert own.client_netns != other.client_netns
    assert born_ticks(os.getpid()) == own.born_ticks > 0
    child = subprocess.Popen(["true"])
    child.wait()
    assert born_ticks(child.pid) is None
    assert own.client_netns not in stale_namespaces()
    assert own.client_interface not in stale_interfaces()


def test_addresses_in_use_are_left_alone():
    assert address_pair(0) == ("198.18.0.1", "198.18.0.2")
    assert address_pair(0, ["10.0.0.1", "198.18.0.2"]) == ("198.18.0.5", "198.18.0.6")
    assert address_pair((1 << 15) - 1, ["198.19.255.253"]) == ("198.18.0.1", "198.18.0.2")
