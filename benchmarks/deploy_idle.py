"""What a device costs while nothing is to be done, and what an exchange costs with little in it."""

import statistics
import time
from collections.abc import Iterator, Sequence

from benchmarks.deploy_fleet import Federation, Real, federation
from benchmarks.deploy_rig import Row, experiment
from benchmarks.deploy_stages import STAGES, stages_s

SECTION = "idle"
DEVICES = 2
IDLE_S, QUICK_IDLE_S = 120.0, 21.0
"""Questions come every 25 s."""
DAY_S = 86_400
MAX_IDLE_MB_A_DAY = 5.0
MAX_EXCHANGE_S = 0.5
ROUNDS, QUICK_ROUNDS = 30, 8
MODEL_BYTES = 3_000


def rows(quick: bool) -> Iterator[Row]:
    """Two devices on a LAN."""
    with federation(DEVICES, ("lan", {})) as devices:
        real = devices.run(
            experiment(
                name="empty",
                link="lan",
                options={},
                model_bytes=MODEL_BYTES,
                clients=DEVICES,
                rounds=QUICK_ROUNDS if quick else ROUNDS,
            )
        )
        found_s = stages_s(devices.folder, skip=1)
        idle_mb = _idle_mb_a_day(devices, QUICK_IDLE_S if quick else IDLE_S)
    yield Row(
        section=SECTION,
        name="idle device, up and down, MB a day",
        bound=MAX_IDLE_MB_A_DAY,
        measured=idle_mb,
        unit="MB",
    )
    yield from _exchange_rows(real, found_s)


def _exchange_rows(real: Real, found_s: Sequence[Sequence[float]]) -> Iterator[Row]:
    exchange_s = [
        report.arrival_s - report.train_s
        for record in real.records[1:]
        for report in record.reports
        if report.arrival_s is not None
    ]
    median_s = statistics.median(exchange_s)
    yield Row(
        section=SECTION,
        name="exchange of 3 kB on a LAN, all but the training, median",
        bound=MAX_EXCHANGE_S,
        measured=median_s,
        unit="s",
        note=f"{min(exchange_s):.2f} to {max(exchange_s):.2f} s, {len(exchange_s)} exchanges",
    )
    medians_s = [statistics.median(one) for one in zip(*found_s, strict=True)]
    for name, stage_s in zip(STAGES, medians_s, strict=True):
        yield _told(f"of it: {name}", stage_s)
    # What one waits for is told when it is there, so that this is work and the pauses in it.
    yield _told("of it: the server, before and after", median_s - sum(medians_s))


def _told(name: str, seconds: float) -> Row:
    return Row(section=SECTION, name=name, bound=None, measured=seconds, unit="s")


def _idle_mb_a_day(devices: Federation, seconds: float) -> float:
    time.sleep(5)
    begin_s, begin = time.monotonic(), sum(devices.wire_bytes())
    time.sleep(seconds)
    sent = sum(devices.wire_bytes()) - begin
    return sent / DEVICES / (time.monotonic() - begin_s) * DAY_S / 1e6
