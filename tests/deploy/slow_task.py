"""A task whose model is evaluated for longer than Flower believes a silent device."""

import time
from dataclasses import dataclass

from clients.tasks.digits import Digits


@dataclass(frozen=True, slots=True)
class SlowToEvaluate(Digits):
    """The digits; the server's processor is busy for so long with each of four batches."""

    seconds: float = 17.0

    def evaluate(self, model, x, y):
        until_s = time.monotonic() + self.seconds
        while time.monotonic() < until_s:
            pass
        return Digits.evaluate(self, model, x, y)
