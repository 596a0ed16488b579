"""Codecs that a client tries on a sample of its update, so that a server may choose among them.

What the others would have cost is seen without sending anything in them.
"""

from collections.abc import Sequence

from flwr.app import MetricRecord, RecordDict

from fedsys.codecs._chain import Codec
from fedsys.codecs._measure import measure, sample_of
from fedsys.middleware.control import RECORD
from fedsys.rng import rng_for
from fedsys.types import F32, CodecTrial

_BITS, _NMSE = "trial-bits", "trial-nmse"
_MAX_BITS = 80.0
_MAX_NMSE = 1e6


def trial_figures(codecs: Sequence[Codec], x: F32, seed: int) -> dict[str, list[float]]:
    """Metrics that say what each codec makes of ``x``: two lists, in the order of ``codecs``."""
    sample = sample_of(x)
    found = [measure(codec, sample, ((sample.size,),), rng_for(seed)) for codec in codecs]
    bits = [8 * one.body_bytes / max(1, sample.size) for one in found]
    return {_BITS: bits, _NMSE: [one.nmse for one in found]}


def read_trials(content: RecordDict, specs: Sequence[str]) -> tuple[CodecTrial, ...]:
    """The figures for ``specs`` in a stranger's reply; empty when they are not what was asked."""
    record = content.get(RECORD)
    if not isinstance(record, MetricRecord):
        return ()
    bits = _figures(record.get(_BITS), len(specs), _MAX_BITS)
    nmse = _figures(record.get(_NMSE), len(specs), _MAX_NMSE)
    if bits is None or nmse is None:
        return ()
    return tuple(
        CodecTrial(spec=spec, bits=b, nmse=e) for spec, b, e in zip(specs, bits, nmse, strict=True)
    )


def _figures(value: object, count: int, limit: float) -> list[float] | None:
    """``count`` numbers from 0 to ``limit``; None for anything else."""
    if not isinstance(value, list) or len(value) != count:
        return None
    usable = all(isinstance(one, int | float) and 0 <= one <= limit for one in value)
    return [float(one) for one in value] if usable else None
