"""What a device costs while nothing is to be done, and what an exchange costs with little in it."""

import statistics
import time
from collections.abc import Iterator

from benchmarks.deploy_fleet import Federation, federation
from benchmarks.deploy_rig import Row, experiment

SECTION = "idle"
DEVICES = 2
IDLE_S, QUICK_IDLE_S = 120.0, 21.0
"""Questions come every 20 s, heartbeats every 30 s."""
DAY_S = 86_400
MAX_IDLE_MB_A_DAY = 5.0
MAX_EXCHANGE_S = 0.5
ROUNDS = 12
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
                rounds=ROUNDS // 3 if quick else ROUNDS,
            )
        )
        idle_mb = _idle_mb_a_day(devices, QUICK_IDLE_S if quick else IDLE_S)
    exchange_s = [
        report.arrival_s - report.train_s
        for record in real.records[1:]
        for report in record.reports
        if report.arrival_s is not None
    ]
    yield Row(
        section=SECTION,
        name="idle device, up and down, MB a day",
        bound=MAX_IDLE_MB_A_DAY,
        measured=idle_mb,
        unit="MB",
    )
    yield Row(
        section=SECTION,
        name="exchange of 3 kB on a LAN, all but the training, least",
        bound=MAX_EXCHANGE_S,
        measured=min(exchange_s),
        unit="s",
        note=f"median {statistics.median(exchange_s):.2f} s of {len(exchange_s)}",
    )


def _idle_mb_a_day(devices: Federation, seconds: float) -> float:
    time.sleep(5)
    begin_s, begin = time.monotonic(), sum(devices.wire_bytes())
    time.sleep(seconds)
    sent = sum(devices.wire_bytes()) - begin
    return sent / DEVICES / (time.monotonic() - begin_s) * DAY_S / 1e6
