"""A link in the proxy is the link of virtual time."""

import pytest

from netem.proxy.terms import terms_of
from netem.spec import link_from_text
from netem.tcp import loss_limited_bps, wire_bits
from netem.transfer import plan_transfer

PLAIN = "tcp=none, tls=false, jitter_ms=0"
LINKS = [
    f"constant(up_bps=64e3, down_bps=1e6, delay_ms=50, {PLAIN})",
    f"constant(up_bps=3e6, down_bps=1e6, outages=[[0.3, 2], [2.5, 2.6]], {PLAIN})",
    f"duty_cycle(up_bps=2e5, down_bps=2e5, duty_fraction=0.2, period_s=2, {PLAIN})",
    *(f"{name}({PLAIN})" for name in ("2g", "3g", "lte", "lte-driving", "wifi-weak", "adsl")),
]


@pytest.mark.parametrize("text", LINKS)
@pytest.mark.parametrize("way", ["up", "down"])
def test_a_transfer_takes_what_virtual_time_says(fresh, text, way):
    link = link_from_text(text, 1, 3)
    timing, one, stream = fresh(link.up.curve)
    one.change(terms_of(link, way))
    for size_bytes in (200, 40_000, 300_000):
        start_s = timing.now_s()
        expected_s = plan_transfer(link, way, size_bytes, start_s, seed=1, flow=()).finish_s()
        stream.send(one, bytes(size_bytes))
        timing.run_until(expected_s + 60)
        assert stream.end_s - start_s == pytest.approx(expected_s - start_s, rel=0.01)


def test_headers_cost_what_they_cost_in_virtual_time():
    link = link_from_text("3g", 1, 1)
    terms = terms_of(link, "up")
    for size_bytes in (1, 100, 1448, 1_000_000):
        assert terms.bits(size_bytes) == pytest.approx(
            wire_bits(size_bytes, link.up, tls=False), abs=8 * 52
        )


def test_loss_limits_the_rate_as_the_formulas_say():
    text = "constant(up_bps=20e6, down_bps=1e6, delay_ms=40, loss_fraction=0.02, tcp={})"
    cubic, bbr, none = (
        terms_of(link := link_from_text(text.format(tcp), 1, 1), "up")
        for tcp in ("cubic", "bbr", "none")
    )
    cap_bps = loss_limited_bps(link.up, 0.08)
    assert cubic.curve.rate_at(0) == pytest.approx(cap_bps)
    assert cap_bps < 4e6
    assert bbr.curve.rate_at(0) == pytest.approx(0.98 * 20e6)
    assert (none.curve.rate_at(0), none.loss_fraction) == (20e6, 0)
    assert cubic.loss_fraction == bbr.loss_fraction == 0.02
    assert 0 < cubic.timeout_fraction < 1
    assert bbr.timeout_fraction == 0
    assert (cubic.recovery_s, cubic.timeout_s) == pytest.approx((0.08, 0.28))
    assert cubic.loss_in(1448) == pytest.approx(0.02)
    assert cubic.loss_in(14480) == pytest.approx(1 - 0.98**10)
