"""Codecs that a client tries on a sample of its update, so that a server may choose among them.

What the others would have cost is seen without sending anything in them.
"""

import math
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


def trial_figures(codecs: Sequence[Codec], x: F32, seed: int) -> MetricRecord:
    """What each codec makes of ``x``: two lists of figures, in the order of ``codecs``."""
    sample = sample_of(x)
    found = [measure(codec, sample, ((sample.size,),), rng_for(seed)) for codec in codecs]
    bits = [8 * one.body_bytes / max(1, sample.size) for one in found]
    return MetricRecord({_BITS: bits, _NMSE: [one.nmse for one in found]})


def read_trials(content: RecordDict, specs: Sequence[str]) -> tuple[CodecTrial, ...]:
    """The figures for ``specs`` in a stranger's reply; empty when they are not what was asked."""
    record = content.metric_records.get(RECORD, MetricRecord())
    bits, nmse = (_figures(record.get(key), len(specs)) for key in (_BITS, _NMSE))
    usable = all(
        0 <= b <= _MAX_BITS and 0 <= e <= _MAX_NMSE for b, e in zip(bits, nmse, strict=True)
    )
    if len(bits) != len(specs) or not usable:
        return ()
    return tuple(
        CodecTrial(spec=spec, bits=b, nmse=e) for spec, b, e in zip(specs, bits, nmse, strict=True)
    )


def _figures(value: object, count: int) -> list[float]:
    """``count`` finite numbers; NaNs, which fail every comparison, in place of anything else."""
    if isinstance(value, list) and len(value) == count:
        if all(isinstance(one, int | float) for one in value):
            return [float(one) for one in value]
    return [math.nan] * count
