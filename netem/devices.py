"""How fast a named device trains: what a local step costs in virtual seconds.

Rates are what a training loop sustains on small models, not the peak of a data sheet; where only
a peak or a benchmark is published, ours is an estimate from it and says so.
"""

import math
from dataclasses import dataclass
from typing import Any

from fedsys.errors import ConfigError
from fedsys.options import configured
from fedsys.registry import nearest
from fedsys.rng import rng_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device: sustained arithmetic, and a fixed cost of every local step."""

    flops_per_s: float
    """Floating-point operations per second of a forward and backward pass in float32."""
    overhead_ms: float
    """Per step: interpreter, kernel launches, loading the batch."""

    def __post_init__(self) -> None:
        if not self.flops_per_s > 0:
            raise ConfigError(f"flops_per_s must be above 0, got {self.flops_per_s}")
        if not 0 <= self.overhead_ms < math.inf:
            raise ConfigError(f"overhead_ms must be 0 or more, got {self.overhead_ms}")

    def step_s(self, flops: float) -> float:
        """Seconds of a step that needs ``flops`` operations."""
        return self.overhead_ms / 1000 + flops / self.flops_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    """What an experiment file may say about a device beside its name."""

    flops_per_s: float
    overhead_ms: float
    spread: float = 0.0
    """Sigma of a log-normal factor on a node's speed; 0 makes all nodes alike."""

    def __post_init__(self) -> None:
        if not 0 <= self.spread < math.inf:
            raise ConfigError(f"spread must be 0 or more, got {self.spread}")

    def build(self, seed: int, node: int) -> Device:
        """The device of ``node``, as fast as it drew from ``seed``."""
        device = Device(flops_per_s=self.flops_per_s, overhead_ms=self.overhead_ms)
        if self.spread == 0:
            return device
        factor = float(rng_for(seed, "device-spread", node).lognormal(0.0, self.spread))
        return Device(
            flops_per_s=device.flops_per_s * factor, overhead_ms=device.overhead_ms / factor
        )


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """A named device; ``source`` says what the numbers rest on."""

    flops_per_s: float
    overhead_ms: float
    help: str
    source: str


DEVICES: dict[str, DeviceProfile] = {
    "raspberry-pi-zero-2": DeviceProfile(
        1.5e9,
        40.0,
        "4 x Cortex-A53 at 1 GHz, 512 MB",
        "our estimate: peak 32 GFLOP/s in float32 (8 a cycle and core), memory bound at 5 %",
    ),
    "raspberry-pi-4": DeviceProfile(
        5e9,
        15.0,
        "4 x Cortex-A72 at 1.5 GHz",
        "our estimate: HPL reaches 8 GFLOP/s in float64 (Feiereisen 2022); training 0.6 of it",
    ),
    "jetson-nano": DeviceProfile(
        70e9,
        8.0,
        "128-core Maxwell GPU",
        "our estimate: 30 % of 236 GFLOP/s float32 (NVIDIA data sheet: 472 in float16)",
    ),
    "phone-low": DeviceProfile(
        3e9, 20.0, "entry-level phone, 8 x Cortex-A53, one cluster in use", "our estimate"
    ),
    "phone-mid": DeviceProfile(
        12e9, 10.0, "mid-range phone, 2 x Cortex-A76 in use", "our estimate"
    ),
    "laptop": DeviceProfile(60e9, 2.0, "4-core laptop with AVX2, no GPU", "our estimate"),
    "gpu-server": DeviceProfile(
        20e12, 0.5, "one data-centre GPU", "our estimate: an eighth of the TF32 peak of an A100"
    ),
    "instant": DeviceProfile(math.inf, 0.0, "computes in no time", "by definition"),
}


def available_devices() -> list[tuple[str, str]]:
    """(name, help) of every device profile."""
    return [
        (
            name,
            f"{one.help}: {one.flops_per_s / 1e9:g} GFLOP/s, {one.overhead_ms:g} ms a step "
            f"[{one.source}]",
        )
        for name, one in DEVICES.items()
    ]


def device_model(name: str, options: dict[str, Any]) -> DeviceOptions:
    """A profile whose numbers ``options`` may replace, and a ``spread``.

    Raises ConfigError for a name or an option that does not exist.
    """
    profile = DEVICES.get(name)
    if profile is None:
        raise ConfigError(f"no device '{name}'; {nearest(name, list(DEVICES))}")
    numbers = {"flops_per_s": profile.flops_per_s, "overhead_ms": profile.overhead_ms, **options}
    chosen: DeviceOptions = configured(f"device '{name}'", DeviceOptions, numbers)
    return chosen


def device_for(name: str, options: dict[str, Any], seed: int, node: int) -> Device:
    """The device of ``node``; see ``device_model``, which many nodes share."""
    return device_model(name, options).build(seed, node)
