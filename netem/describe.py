"""What a link is in figures: its rate over time, and how long messages take on it.

m = number of steps of a curve in the window that is described.
"""

import math
from dataclasses import dataclass

import numpy as np

from fedsys.errors import ConfigError
from fedsys.registry import load
from fedsys.rng import rng_for
from fedsys.types import F64
from netem.link import Layer, Link, OnOutage, Tcp, Way
from netem.profiles import MODELS, PROFILES
from netem.rate import RateCurve
from netem.spec import LinkSpec
from netem.transfer import plan_transfer

WAYS: tuple[Way, Way] = ("up", "down")
PERCENTILES = (1, 10, 50, 90, 99)
SIZES_BYTES = (100_000, 1_000_000, 10_000_000, 100_000_000)
NODES = 25
STARTS = 100
GAPS_SHOWN = 20
"""Random outages that a window holds on average where nothing else makes it longer."""
_MIN_WINDOW_S = 60.0
_MAX_STEPS = 2_000_000


@dataclass(frozen=True, eq=False, slots=True)
class Window:
    """A curve from 0 to ``edge_s[-1]``.

    edge_s     float64 [m + 1]  s
    rate_bps   float64 [m]      bit/s from one edge to the next
    """

    edge_s: F64
    rate_bps: F64

    @classmethod
    def of(cls, curve: RateCurve, seconds: float) -> "Window":
        """The first ``seconds`` of ``curve``; ConfigError where it has too many steps."""
        period_s = curve.period_s or math.inf
        laps = math.ceil(seconds / period_s) if period_s < math.inf else 1
        if laps * curve.edge_s.size > _MAX_STEPS:
            raise ConfigError(f"{seconds:g} s of this link have too many steps; take fewer seconds")
        start_s = np.arange(laps) * period_s if laps > 1 else np.zeros(1)
        edge_s = (start_s[:, None] + curve.edge_s).ravel()
        cuts = [cut_s for outage in curve.outages_until(seconds) for cut_s in outage]
        edge_s = np.unique(np.concatenate([edge_s, cuts, [0.0, seconds]]))
        edge_s = edge_s[edge_s <= seconds]
        middle_s = (edge_s[1:] + edge_s[:-1]) / 2
        local_s = middle_s % period_s if period_s < math.inf else middle_s
        rate_bps = curve.rate_bps[np.searchsorted(curve.edge_s, local_s, side="right") - 1]
        inside = np.searchsorted(cuts, middle_s, side="right") % 2 == 1
        return cls(edge_s, np.where(inside, 0.0, rate_bps))

    @property
    def mean_bps(self) -> float:
        """Bits that pass over the length of the window."""
        return float((self.rate_bps * np.diff(self.edge_s)).sum() / self.edge_s[-1])

    @property
    def zero_fraction(self) -> float:
        """Share of the time in which nothing moves."""
        lengths_s = np.diff(self.edge_s)
        return float(lengths_s[self.rate_bps == 0].sum() / self.edge_s[-1])

    @property
    def longest_gap_s(self) -> float:
        """The longest time without a break in which nothing moves."""
        padded = np.concatenate([[False], self.rate_bps == 0, [False]])
        turns = np.flatnonzero(np.diff(padded))
        return float((self.edge_s[turns[1::2]] - self.edge_s[turns[::2]]).max(initial=0.0))

    def percentile_bps(self, percent: float) -> float:
        """The rate that is not exceeded for ``percent`` of the time."""
        order = np.argsort(self.rate_bps)
        share = np.cumsum(np.diff(self.edge_s)[order]) / self.edge_s[-1]
        at = int(np.searchsorted(share, percent / 100 * (1 - 1e-12)))
        return float(self.rate_bps[order[min(at, order.size - 1)]])

    def binned(self, bins: int) -> tuple[F64, F64]:
        """Mean rate in bit/s and share of time at 0 of equal parts, float64 [bins] each."""
        lengths_s = np.diff(self.edge_s)
        at_s = np.linspace(0.0, self.edge_s[-1], bins + 1)
        if not np.isfinite(self.rate_bps).all():
            return np.full(bins, math.inf), np.zeros(bins)
        sums = [
            np.interp(at_s, self.edge_s, np.concatenate([[0.0], np.cumsum(values * lengths_s)]))
            for values in (self.rate_bps, (self.rate_bps == 0).astype(np.float64))
        ]
        mean_bps, zero_fraction = (np.diff(part) / np.diff(at_s) for part in sums)
        return mean_bps, zero_fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class WayFigures:
    """One direction of a link over the window."""

    mean_bps: float
    percentiles_bps: dict[int, float]
    """By percent of the time; keys are ``PERCENTILES``."""
    zero_fraction: float
    longest_gap_s: float
    dead_from_s: float
    """After this nothing ever moves again; inf for a link that recovers."""
    node_median_bps: tuple[float, float, float]
    """10th, 50th and 90th percentile over nodes of their median rates."""
    jitter_ms: float
    loss_fraction: float
    loss_burst_packets: float
    queue_bytes: int | None
    """None has no limit."""
    layer: Layer


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    """How long a message takes if it begins at any time within the window; inf is never."""

    size_bytes: int
    way: Way
    median_s: float
    p90_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """One node's link in figures."""

    text: str
    what: str
    source: str
    """Where the numbers come from."""
    seed: int
    node: int
    seconds: float
    rtt_ms: float
    tcp: Tcp
    tls: bool
    reuse_connection: bool
    on_outage: OnOutage
    idle_timeout_s: float
    poll_s: float
    available_fraction: float
    """Share of the time in which the device takes part."""
    ways: dict[Way, WayFigures]
    durations: tuple[Duration, ...]


def describe(
    spec: LinkSpec, seed: int, node: int, seconds: float | None = None, *, starts: int = STARTS
) -> Description:
    """The link of ``node`` over its first ``seconds``; None is one lap of its pattern.

    Messages begin at ``starts`` moments within that time, the same for all sizes.
    """
    link = spec.link(seed, node)
    seconds = window_s(link) if seconds is None else seconds
    if not 0 < seconds < math.inf:
        raise ConfigError(f"seconds must be above 0, got {seconds}")
    nodes = [link, *(spec.link(seed, other) for other in range(1, NODES + 1) if other != node)]
    what, source = _origin(spec)
    hours = link.availability
    return Description(
        text=str(spec),
        what=what,
        source=source,
        seed=seed,
        node=node,
        seconds=seconds,
        rtt_ms=1000 * link.rtt_s,
        tcp=link.tcp,
        tls=link.tls,
        reuse_connection=link.reuse_connection,
        on_outage=link.on_outage,
        idle_timeout_s=link.idle_timeout_s,
        poll_s=link.poll_s,
        available_fraction=1.0 if hours is None else hours.open_s / hours.period_s,
        ways={way: _way_figures(nodes[:NODES], way, seconds) for way in WAYS},
        durations=_durations(link, seed, node, seconds, starts),
    )


def window_s(link: Link) -> float:
    """How long one has to look to know a link: one lap, past its events, some random outages."""
    ends = [_MIN_WINDOW_S]
    for way in WAYS:
        curve = link.way(way).curve
        events = [cut_s for outage in curve.outages for cut_s in outage if cut_s < math.inf]
        if curve.gaps is not None:
            ends.append(GAPS_SHOWN * curve.gaps.period_s / len(curve.gaps.windows))
        if curve.period_s is not None and curve.edge_s.size > 1:
            ends.append(curve.period_s)
        else:
            events.append(float(curve.edge_s[-1]))
        ends += [1.25 * event_s for event_s in events]
    return max(ends)


def _way_figures(nodes: list[Link], way: Way, seconds: float) -> WayFigures:
    """Figures of the first node's link; the others say how unlike nodes are."""
    windows = [Window.of(link.way(way).curve, seconds) for link in nodes]
    medians = np.array([window.percentile_bps(50) for window in windows])
    low, median, high = np.quantile(medians, (0.1, 0.5, 0.9), method="inverted_cdf")
    direction, window = nodes[0].way(way), windows[0]
    return WayFigures(
        mean_bps=window.mean_bps,
        percentiles_bps={percent: window.percentile_bps(percent) for percent in PERCENTILES},
        zero_fraction=window.zero_fraction,
        longest_gap_s=window.longest_gap_s,
        dead_from_s=direction.curve.dead_from_s(),
        node_median_bps=(float(low), float(median), float(high)),
        jitter_ms=direction.jitter_ms,
        loss_fraction=direction.loss_fraction,
        loss_burst_packets=direction.loss_burst_packets,
        queue_bytes=direction.queue_bytes,
        layer=direction.layer,
    )


def _durations(
    link: Link, seed: int, node: int, seconds: float, starts: int
) -> tuple[Duration, ...]:
    starts_s = rng_for(seed, "describe", node).uniform(0.0, seconds, starts)
    found = []
    for size_bytes in SIZES_BYTES:
        for way in WAYS:
            taken_s = [
                plan_transfer(
                    link, way, size_bytes, float(start_s), seed=seed, flow=("describe", turn)
                ).finish_s()
                - start_s
                for turn, start_s in enumerate(starts_s)
            ]
            median_s, p90_s = np.quantile(taken_s, (0.5, 0.9), method="inverted_cdf")
            found.append(
                Duration(
                    size_bytes=size_bytes, way=way, median_s=float(median_s), p90_s=float(p90_s)
                )
            )
    return tuple(found)


def _origin(spec: LinkSpec) -> tuple[str, str]:
    """What the link is, and where its numbers come from."""
    profile = PROFILES.get(spec.name)
    if profile is not None:
        changed = f"; here with other {', '.join(spec.options)}" if spec.options else ""
        return profile.help, profile.source + changed
    paragraph = (load(MODELS, spec.name).__doc__ or "").split("\n\n")[0]
    what = " ".join(paragraph.replace("``", "").split())
    files = dict.fromkeys(str(v) for k, v in spec.options.items() if k.endswith("_file") and v)
    return what, f"recorded in {' and '.join(files)}" if files else "the options given"
