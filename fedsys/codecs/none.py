"""The empty chain: values travel as they are."""

from dataclasses import dataclass

import numpy as np

from fedsys.codecs._base import Dense, Layout, Update
from fedsys.errors import WireError
from fedsys.types import F32


@dataclass(frozen=True, slots=True)
class Identity:
    """Send float32 values unchanged: exact, 32 bits per parameter."""

    def encode(self, x: F32, layout: Layout, rng: np.random.Generator) -> tuple[F32 | None, bytes]:
        """All values go on; no own bytes."""
        return x, b""

    def value_count(self, side: memoryview, n: int) -> int:
        """All ``n``."""
        if side:
            raise WireError(f"none: {len(side)} bytes where none are expected")
        return n

    def decode(self, side: memoryview, values: F32 | None, n: int, layout: Layout) -> Update:
        """The values themselves."""
        if values is None:
            raise WireError("none: no values follow")
        return Dense(values)


Impl = Identity
