"""A plan that changes once, at a moment fixed beforehand: what hindsight may try."""

from dataclasses import dataclass

from fedsys.codecs._chain import parse
from fedsys.errors import ConfigError
from fedsys.types import RoundPlan, RoundRecord
from strategies._base import Scene


@dataclass(frozen=True, slots=True)
class TwoParts:
    """One fixed plan for rounds that begin before ``switch_s``, another one after it.

    Each option has a value for the first and one for the second part. ``codecs`` hold for both
    directions.
    """

    switch_s: float = 60.0
    local_epochs: tuple[int, int] = (4, 1)
    codecs: tuple[str, str] = ("int4", "int8")

    def __post_init__(self) -> None:
        if self.switch_s < 0 or min(self.local_epochs) < 1:
            raise ConfigError("switch_s must be 0 or more, local_epochs 1 or more")
        for codec in self.codecs:
            parse(codec)

    @property
    def chooses_codecs(self) -> bool:
        """Yes: the parts may differ in it."""
        return True

    @property
    def fednova(self) -> bool:
        """No, as the fixed plans that it is made of."""
        return False

    def start(self, scene: Scene) -> float:
        """The clock, in seconds."""
        return 0.0

    def plan(self, scene: Scene, state: float, round_number: int) -> RoundPlan:
        """The plan of the part that the clock is in."""
        part = int(state >= self.switch_s)
        epochs, codec = self.local_epochs[part], self.codecs[part]
        return scene.plan(
            round_number,
            scene.work(scene.sample(round_number), epochs),
            uplink=codec,
            downlink=codec,
            reason=f"part {part + 1}: {epochs} epochs, {codec}",
        )

    def observe(self, scene: Scene, state: float, record: RoundRecord) -> float:
        """When the round ended."""
        return record.end_s


Impl = TwoParts
