"""Error feedback: what a codec dropped is added to the next update (Seide et al. 2014)."""

from dataclasses import dataclass

import numpy as np

from fedsys.codecs._base import Layout, Update, sum_of_squares
from fedsys.codecs._chain import Codec
from fedsys.types import F32


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualRule:
    """What a residual is worth when it is used; by default all of it, however old.

    A residual points where the model stood when it was left. SparseLoCo (Sarfi et al. 2025) is
    ``decay_per_round`` beta with codec ``topk(fraction,chunk=4096)|int2``.
    """

    decay: float = 1.0
    """Factor for each version that the client missed (Li and Li 2023)."""
    decay_per_round: float = 1.0
    """Factor for each use, missed versions or not."""
    max_age_versions: int | None = None
    """A residual left more versions ago is dropped; None keeps it."""
    clip: float | None = None
    """Its norm is cut to this many times the update's; None leaves it."""

    def aged(self, residual: F32, versions: int) -> F32 | None:
        """What is left of a residual ``versions`` >= 1 after the one that left it, if anything."""
        if self.max_age_versions is not None and versions > self.max_age_versions:
            return None
        factor = self.decay_per_round * self.decay ** max(0, versions - 1)
        return residual if factor == 1 else residual * np.float32(factor)

    def clipped(self, residual: F32 | None, update: F32) -> F32 | None:
        """The residual with its norm cut to what ``update`` allows."""
        if residual is None or self.clip is None:
            return residual
        norm, limit = (sum_of_squares(x) ** 0.5 for x in (residual, update))
        limit *= self.clip
        return residual if norm <= limit else residual * np.float32(limit / norm)


@dataclass(frozen=True, slots=True)
class Feedback:
    """An encoded update and what the sender should remember once it was acknowledged."""

    body: bytes
    decoded: Update
    """What the receiver will see."""
    compensated: F32
    """Update plus old residual: what was encoded."""
    residual: F32
    """Compensated minus decoded. Keep it only if the receiver got the body; otherwise the next
    residual is ``compensated``, for then nothing of it arrived."""
    nmse: float
    """Squared norm of the residual over that of ``compensated``; 0 where that is zero."""


def encode_with_feedback(
    codec: Codec,
    update: F32,
    residual: F32 | None,
    layout: Layout,
    rng: np.random.Generator,
) -> Feedback:
    """Encode ``update`` float32 [n] plus what earlier rounds left; None means nothing was left.

    Decoded plus new residual equals update plus old residual, whatever the codec. Nothing is
    stored here, and neither input is modified. Raises NonFiniteError as the codec does.
    """
    with np.errstate(over="ignore"):
        compensated = np.array(update, np.float32).reshape(-1)
        if residual is not None:
            compensated += residual
    body = codec.encode(compensated, layout, rng)
    decoded = codec.decode(body, compensated.size, layout)
    left = compensated.copy()
    decoded.add_to(left, -1.0)
    energy = sum_of_squares(compensated)
    nmse = sum_of_squares(left) / energy if energy else 0.0
    return Feedback(body, decoded, compensated, left, nmse)
