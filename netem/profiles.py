"""Named links: what ``link = "3g"`` means, and where its numbers come from.

A profile is a set of options of one link model. Nodes differ (``spread``), because unequal links
are what federated learning meets. A number without a source is ours, and says so.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from fedsys.errors import ConfigError, LinkError
from fedsys.options import configured, options_text
from fedsys.registry import available, load, nearest
from netem.link import Link

MODELS = "netem.links"


class LinkModel(Protocol):
    """What ``Impl`` of a file in ``netem/links`` is, once it has its options."""

    def build(self, seed: int, node: int) -> Link:
        """The link of ``node``; the same for the same seed and node."""
        ...


@dataclass(frozen=True, slots=True)
class Profile:
    """A link model with its options."""

    model: str
    options: dict[str, Any]
    help: str
    """One line for ``fedsys list links``."""
    source: str


PROFILES: dict[str, Profile] = {
    "2g": Profile(
        "fading",
        {
            "up_bps": 200e3,
            "down_bps": 240e3,
            "delay_ms": 420.0,
            "jitter_ms": 100.0,
            "sigma": 0.4,
            "correlation_s": 20.0,
            "outage_fraction": 0.02,
            "mean_outage_s": 5.0,
            "spread": 0.3,
        },
        "EDGE: 240 / 200 kbit/s, round trip 840 ms, short gaps",
        "rates and delay: WebPageTest connectivity profile 'Edge'; variation: ours",
    ),
    "3g": Profile(
        "fading",
        {
            "up_bps": 0.768e6,
            "down_bps": 1.6e6,
            "delay_ms": 75.0,
            "jitter_ms": 40.0,
            "sigma": 0.5,
            "correlation_s": 15.0,
            "outage_fraction": 0.01,
            "mean_outage_s": 3.0,
            "spread": 0.5,
        },
        "HSPA: 1.6 / 0.77 Mbit/s, round trip 150 ms, wanders, short gaps",
        "rates and delay: WebPageTest connectivity profile '3G Fast'; variation after the HSDPA "
        "traces of Riiser et al., MMSys 2013 (10th percentile near half the mean)",
    ),
    "lte": Profile(
        "fading",
        {
            "up_bps": 6e6,
            "down_bps": 13e6,
            "delay_ms": 35.0,
            "jitter_ms": 15.0,
            "sigma": 0.4,
            "correlation_s": 10.0,
            "spread": 0.5,
        },
        "LTE, standing: 13 / 6 Mbit/s, round trip 70 ms",
        "medians: Huang et al., MobiSys 2012; round trip: WebPageTest profile 'LTE'; rest: ours",
    ),
    "lte-driving": Profile(
        "fading",
        {
            "up_bps": 1.5e6,
            "down_bps": 3.6e6,
            "delay_ms": 35.0,
            "jitter_ms": 30.0,
            "sigma": 0.9,
            "correlation_s": 8.0,
            "outage_fraction": 0.03,
            "mean_outage_s": 2.0,
            "spread": 0.4,
        },
        "LTE in a moving car: 3.6 / 1.5 Mbit/s median, swings tenfold, gaps of seconds",
        "synthetic, fitted by eye to mean and percentiles of the Mahimahi trace "
        "ATT-LTE-driving-2016 (format: Winstein et al., NSDI 2013)",
    ),
    "5g-edge": Profile(
        "fading",
        {
            "up_bps": 10e6,
            "down_bps": 60e6,
            "delay_ms": 20.0,
            "jitter_ms": 10.0,
            "sigma": 1.0,
            "correlation_s": 6.0,
            "outage_fraction": 0.04,
            "mean_outage_s": 1.5,
            "spread": 0.4,
        },
        "5G at the edge of its cell: 60 / 10 Mbit/s median, deep swings and gaps",
        "synthetic; spread and zero share after the driving traces of Raca et al., MMSys 2020",
    ),
    "wifi-weak": Profile(
        "gilbert_elliott",
        {
            "up_bps": 3e6,
            "down_bps": 3e6,
            "delay_ms": 10.0,
            "jitter_ms": 15.0,
            "good_to_bad_fraction": 0.004,
            "bad_to_good_fraction": 0.2,
            "loss_bad_fraction": 0.5,
            "spread": 0.5,
        },
        "Wi-Fi through walls: 3 Mbit/s, 1 % loss in bursts",
        "rate: half of the lowest OFDM rate, 6 Mbit/s (IEEE 802.11-2012); the rest: ours",
    ),
    "satellite-geo": Profile(
        "constant",
        {
            "up_bps": 3e6,
            "down_bps": 25e6,
            "delay_ms": 300.0,
            "jitter_ms": 20.0,
            "spread": 0.2,
            "tcp": "bbr",
        },
        "geostationary satellite: 25 / 3 Mbit/s, round trip 600 ms",
        "delay: RFC 2488 (1999), 240 to 280 ms a hop, and 'about 600 ms' in Michel et al., IMC "
        "2022; rates: ours, as advertised",
    ),
    "satellite-leo": Profile(
        "handover",
        {
            "up_bps": 15e6,
            "down_bps": 150e6,
            "delay_ms": 25.0,
            "jitter_ms": 15.0,
            "loss_fraction": 0.001,
            "slot_s": 15.0,
            "gap_s": 0.15,
            "sigma": 0.35,
            "spread": 0.2,
            "tcp": "bbr",
        },
        "low-orbit satellite: 150 / 15 Mbit/s, round trip 50 ms, new rate every 15 s",
        "round trip and rates near Michel et al., 'A First Look at Starlink Performance', IMC "
        "2022; 15 s slots: Mohan et al., arXiv 2310.09242 (2023); gap, loss, sigma: ours",
    ),
    "lora-like": Profile(
        "duty_cycle",
        {
            "up_bps": 5470.0,
            "down_bps": 5470.0,
            "delay_ms": 500.0,
            "duty_fraction": 0.01,
            "period_s": 100.0,
            "tcp": "none",
            "tls": False,
        },
        "LoRa rates on 1 % of the time: 5.5 kbit/s, 55 bit/s on average",
        "rate: LoRaWAN DR5 (SF7, 125 kHz); duty cycle: ETSI EN 300 220; period and delay: ours",
    ),
    "adsl": Profile(
        "constant",
        {"up_bps": 0.64e6, "down_bps": 6.144e6, "delay_ms": 20.0, "jitter_ms": 5.0, "spread": 0.4},
        "ADSL: 6.1 / 0.64 Mbit/s, round trip 40 ms",
        "rates: ITU-T G.992.1 (1999), what every modem must reach; delay and spread: ours",
    ),
    "fibre": Profile(
        "constant",
        {"up_bps": 100e6, "down_bps": 100e6, "delay_ms": 5.0, "jitter_ms": 1.0, "spread": 0.2},
        "fibre to the home: 100 Mbit/s both ways, round trip 10 ms",
        "ours",
    ),
    "lan": Profile(
        "constant",
        {"up_bps": 1e9, "down_bps": 1e9, "delay_ms": 0.1},
        "local Ethernet: 1 Gbit/s, round trip 0.2 ms",
        "rate: IEEE 802.3ab; delay: ours",
    ),
    "perfect": Profile(
        "constant",
        {"up_bps": float("inf"), "down_bps": float("inf"), "tcp": "none", "tls": False},
        "no network at all: everything arrives at once",
        "by definition",
    ),
}


def available_links() -> list[tuple[str, str]]:
    """(name, help) of every profile, then of every model."""
    profiles = [(name, f"{one.help} [{one.source}]") for name, one in PROFILES.items()]
    models = []
    for name in available(MODELS):
        kind = load(MODELS, name)
        text = " ".join((kind.__doc__ or "").split())
        models.append((name, f"{text} Options: {options_text(kind)}"))
    return profiles + models


def link_for(name: str, options: dict[str, Any], seed: int, node: int) -> Link:
    """The link of ``node``: a profile, a model, or ``package.module:Class``, with ``options``.

    Options of a profile replace single numbers of it. Raises ConfigError for a name, an option
    or a file that cannot be used.
    """
    try:
        return link_model(name, options).build(seed, node)
    except LinkError as error:
        raise ConfigError(f"link '{name}': {error}") from error


def link_model(name: str, options: dict[str, Any]) -> LinkModel:
    """The model behind ``name``, with its options checked."""
    profile = PROFILES.get(name)
    if profile is not None:
        kind, options = load(MODELS, profile.model), {**profile.options, **options}
    elif ":" in name or name in available(MODELS):
        kind = load(MODELS, name)
    else:
        raise ConfigError(f"no link '{name}'; {nearest(name, [*PROFILES, *available(MODELS)])}")
    model: LinkModel = configured(f"link '{name}'", kind, options)
    return model
