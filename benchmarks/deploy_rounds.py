"""Real rounds against the same file in virtual time, and bytes on the wire against the ledger."""

import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.deploy_fleet import Federation, Real, federation
from benchmarks.deploy_rig import Row, experiment, fedsys

SECTION = "rounds"
CLIENTS = 5
ROUNDS, QUICK_ROUNDS = 20, 2
"""Of each kind of link, beside the first."""
MODEL_BYTES, QUICK_MODEL_BYTES = 750_000, 150_000
CALIBRATION_ROUNDS = 16
MAX_ROUND_ERROR = 0.05
MAX_LEDGER_ERROR = 0.02
SMALL_BYTES = 70_000
SMALL_CODEC = "topk(0.02)|int8"


@dataclass(frozen=True, slots=True)
class Case:
    """Five devices behind links of one kind."""

    name: str
    link: str
    options: dict[str, Any] = field(default_factory=dict)
    quick: bool = False


EVEN = {"up_bps": 1e6, "down_bps": 1e6, "delay_ms": 50.0, "tcp": "none"}
CASES = (
    Case("1 Mbit/s, 100 ms", "constant", EVEN, True),
    Case("3g", "3g", {"tcp": "none"}),
    Case(
        "2 Mbit/s half of the time",
        "duty_cycle",
        EVEN | {"up_bps": 2e6, "down_bps": 2e6, "duty_fraction": 0.5, "period_s": 2.0},
    ),
)
NO_NETWORK = Case("none", "perfect")


def rows(quick: bool) -> Iterator[Row]:
    """The bars of both, for each kind of link."""
    errors: list[float] = []
    cases = [case for case in CASES if case.quick or not quick]
    with federation(CLIENTS, *((case.link, case.options) for case in cases)) as devices:
        before_s = _handling_s(devices, quick)
        for case in cases:
            devices.set_links(case.link, case.options)
            real = devices.run(_text(case, quick, _rounds(quick) + 1))
            after_s = _handling_s(devices, quick)
            handling_s = statistics.fmean([before_s, after_s])
            before_s = after_s
            yield from _time_rows(case, real, handling_s, quick, errors)
            yield from _ledger_rows(case.name, real)
        if not quick:
            devices.set_links(CASES[0].link, CASES[0].options)
            small = _text(CASES[0], quick, _rounds(quick) + 1, codec=SMALL_CODEC)
            yield from _ledger_rows(f"1 Mbit/s, 100 ms, {SMALL_CODEC}", devices.run(small))
    yield Row(
        section=SECTION,
        name="all links: virtual round against measured, median error",
        bound=MAX_ROUND_ERROR,
        measured=statistics.median(errors),
        note=f"{len(errors)} rounds",
    )


def _time_rows(
    case: Case, real: Real, handling_s: float, quick: bool, errors: list[float]
) -> Iterator[Row]:
    text = _text(case, quick, _rounds(quick) + 1, overhead_ms=1e3 * handling_s)
    with tempfile.TemporaryDirectory(prefix="fedsys-virtual-") as folder:
        virtual = fedsys("simulate", text, Path(folder), timeout_s=400)
    expected_s = statistics.median(virtual.lengths_s[1:])
    measured_s = statistics.median(real.lengths_s)
    errors += [abs(expected_s / one - 1) for one in real.lengths_s]
    yield Row(
        section=SECTION,
        name=f"{case.name}: virtual round against measured, error of medians",
        bound=MAX_ROUND_ERROR,
        measured=abs(expected_s / measured_s - 1),
        note=f"measured {measured_s:.2f} s, virtual {expected_s:.2f} s, "
        f"{handling_s:.2f} s of it at both ends",
    )


def _ledger_rows(name: str, real: Real) -> Iterator[Row]:
    for place, way in enumerate(("uplink", "downlink")):
        wire, ledger = real.bytes_a_round(place)
        yield Row(
            section=SECTION,
            name=f"{name}: {way} of the ledger against the wire, error",
            bound=MAX_LEDGER_ERROR,
            measured=abs(ledger / wire - 1),
            note=f"wire {wire / 1e3:.1f} kB a round, ledger {ledger / 1e3:.1f} kB",
        )


def _handling_s(devices: Federation, quick: bool) -> float:
    """What a round takes beside the network: processes, training, coding, adding up.

    Measured where the network takes no time, with one device a round, because in virtual time each
    has cores of its own; virtual time is told that the local step takes it. In the first half of
    the rounds devices may still have to get the app.
    """
    devices.set_links(NO_NETWORK.link, NO_NETWORK.options)
    text = _text(NO_NETWORK, quick, CALIBRATION_ROUNDS) + "[cohort]\nsize = 1\n"
    return statistics.median(devices.run(text).lengths_s[CALIBRATION_ROUNDS // 2 :])


def _rounds(quick: bool) -> int:
    return QUICK_ROUNDS if quick else ROUNDS


def _text(
    case: Case, quick: bool, rounds: int, *, overhead_ms: float = 0.0, codec: str = ""
) -> str:
    model_bytes = SMALL_BYTES if codec else QUICK_MODEL_BYTES if quick else MODEL_BYTES
    return experiment(
        name="rounds",
        link=case.link,
        options=case.options,
        model_bytes=model_bytes,
        clients=CLIENTS,
        rounds=rounds,
        overhead_ms=overhead_ms,
        uplink=codec or "none",
        downlink="int8" if codec else "none",
    )
