"""A model of whatever size on small data: what it sends is large, what it computes is not."""

from dataclasses import dataclass

from torch import nn

from clients.tasks.digits import Digits
from fedsys.errors import ConfigError

_PER_UNIT = 64 + 1 + 10


@dataclass(frozen=True, slots=True)
class Wide(Digits):
    """The digits with one hidden layer: 75 parameters for each of ``hidden``, and 10."""

    hidden: int = 100

    def __post_init__(self) -> None:
        if self.hidden < 1:
            raise ConfigError(f"hidden must be 1 or more, got {self.hidden}")

    def build_model(self) -> nn.Module:
        """One hidden layer."""
        return nn.Sequential(nn.Linear(64, self.hidden), nn.ReLU(), nn.Linear(self.hidden, 10))


def hidden_for(model_bytes: int) -> int:
    """The width whose parameters take about ``model_bytes``."""
    return max(1, (model_bytes // 4 - 10) // _PER_UNIT)


def bytes_of(hidden: int) -> int:
    """What the parameters of that width take as float32."""
    return 4 * (_PER_UNIT * hidden + 10)
