"""A codec is a chain of stages, named by a spec such as ``topk(0.01)|int8``.

Each stage hands its values to the next; what the last one leaves travels as raw float32. The
body holds the stages' own bytes in order, each behind its length, except the last part, which
takes what is left.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedsys.codecs._base import Dense, Layout, Stage, Update, all_finite, check_finite
from fedsys.codecs._bytes import Cursor, varint
from fedsys.codecs._spec import parse_stages, write_stages
from fedsys.errors import ConfigError, WireError
from fedsys.rng import rng_for
from fedsys.types import F32

MAX_SPEC_CHARS = 255


@dataclass(frozen=True, slots=True)
class Codec:
    """A parsed spec: turns a float32 vector into a body of bytes and back."""

    spec: str
    """Canonical: equal codecs have equal specs."""
    stages: tuple[Stage, ...]
    raw_tail: bool
    """Whether values are left after the last stage, to be sent as float32."""

    def encode(self, x: F32, layout: Layout, rng: np.random.Generator) -> bytes:
        """The body for ``x``, which is not modified; equal generators give equal bytes.

        Raises NonFiniteError when a value is NaN or infinite.
        """
        with np.errstate(over="ignore"):
            flat: F32 = np.ascontiguousarray(x, np.float32).reshape(-1)
        _check_layout(layout, flat.size)
        if not (self.stages and getattr(self.stages[0], "checks_finite", False)):
            check_finite(flat)
        values: F32 | None = flat
        parts: list[bytes | bytearray] = []
        for stage in self.stages:
            if values is None:
                raise ValueError(f"codec '{self.spec}': a stage follows one that ends the chain")
            values, side = stage.encode(values, layout, rng)
            layout = ((0 if values is None else values.size,),)
            parts.append(side)
        if values is not None:
            parts.append(values.astype("<f4", copy=False).tobytes())
        framed = [piece for side in parts[:-1] for piece in (varint(len(side)), side)]
        return b"".join([*framed, parts[-1]])

    def decode(self, body: bytes | memoryview, n: int, layout: Layout) -> Update:
        """The update of ``n`` values; what does not decode raises WireError and nothing else."""
        _check_layout(layout, n)
        sides, counts, tail = self._split(memoryview(body), n)
        values = _raw_values(tail, counts[-1]) if self.raw_tail else None
        update: Update = Dense(np.zeros(0, np.float32) if values is None else values)
        for at in range(len(sides) - 1, -1, -1):
            shapes = ((counts[at],),) if at else layout
            update = self.stages[at].decode(sides[at], values, counts[at], shapes)
            values = update.dense() if at else None
        return update

    def decode_add(
        self, body: bytes | memoryview, n: int, layout: Layout, weight: float, out: F32
    ) -> None:
        """Add ``weight`` times the decoded update to ``out`` float32 [n], in place."""
        if out.shape != (n,):
            raise ValueError(f"decode_add needs {n} values to add to, got shape {out.shape}")
        self.decode(body, n, layout).add_to(out, weight)

    def _split(self, body: memoryview, n: int) -> tuple[list[memoryview], list[int], memoryview]:
        """Each stage's own bytes, the value counts before and after it, and the raw values."""
        cursor = Cursor(body, f"codec '{self.spec}'")
        sides: list[memoryview] = []
        counts = [n]
        for at, stage in enumerate(self.stages):
            if at == len(self.stages) - 1 and not self.raw_tail:
                return [*sides, cursor.rest()], counts, memoryview(b"")
            side = cursor.take(cursor.varint(len(body)))
            count = stage.value_count(side, counts[-1])
            if not 0 <= count <= counts[-1]:
                raise WireError(f"codec '{self.spec}': {count} values from {counts[-1]}")
            sides.append(side)
            counts.append(count)
        return sides, counts, cursor.rest()


@lru_cache(maxsize=256)
def parse(spec: str) -> Codec:
    """The codec that ``spec`` names.

    Stages are separated by ``|``; parameters follow in parentheses, as in ``topk(0.05)`` or
    ``int8(block=64)``. ``package.module:Class(...)`` names a stage from outside fedsys.
    Raises ConfigError, with the nearest valid name where there is one.
    """
    stages = parse_stages(spec)
    ends = [_ends_chain(stage) for stage in stages]
    for at, stage in enumerate(stages[:-1]):
        if ends[at]:
            name = write_stages((stage,))
            after = write_stages(stages[at + 1 :])
            raise ConfigError(f"codec '{spec}': {name} ends the chain, move {after} before it")
    canonical = write_stages(stages)
    if len(canonical) > MAX_SPEC_CHARS:
        raise ConfigError(f"codec '{spec[:40]}...' is longer than {MAX_SPEC_CHARS} characters")
    return Codec(canonical, stages, raw_tail=not any(ends))


def parse_received(spec: str, trusted: Collection[str] = ()) -> Codec:
    """The codec named by a spec that came from the network; WireError where there is none.

    Importing a module that a stranger names would run its code, so ``package.module:Class`` is
    refused unless the whole spec is among ``trusted``, the specs of the receiver's own config.
    """
    if ":" in spec and spec not in trusted:
        raise WireError(f"codec '{spec[:80]}' names a module and is not one of our own")
    try:
        return parse(spec)
    except ConfigError as error:
        raise WireError(str(error)) from error


def _ends_chain(stage: Stage) -> bool:
    """Whether the stage hands no values on, by encoding one value."""
    probe = np.zeros(1, np.float32)
    values, _ = stage.encode(probe, ((1,),), rng_for(0))
    return values is None


def _check_layout(layout: Layout, n: int) -> None:
    """Both come from the caller's own model, so a mismatch is a mistake in its code."""
    if sum(math.prod(shape) for shape in layout) != n:
        raise ValueError(f"the layout {layout} does not hold {n} values")


def _raw_values(data: memoryview, count: int) -> F32:
    if len(data) != 4 * count:
        raise WireError(f"{len(data)} bytes of values, expected {4 * count}")
    values = np.frombuffer(data, "<f4").astype(np.float32, copy=False)
    if not all_finite(values):
        raise WireError("a value is NaN or infinite")
    return values
