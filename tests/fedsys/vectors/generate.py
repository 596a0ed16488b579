"""Write vectors.json anew: ``python tests/fedsys/vectors/generate.py``, after a format change only.

Raise PROTOCOL in fedsys/wire/packet.py with it: older receivers cannot read the new bytes.
"""

import json
import math
from pathlib import Path

import numpy as np

from fedsys.codecs._chain import parse
from fedsys.rng import rng_for
from fedsys.wire.packet import Kind, Packet, pack
from fedsys.wire.schema import Schema

SPECS = [
    "none",
    "fp16",
    "bf16",
    "int8(block=64)",
    "int4(block=64)",
    "int2(block=64)",
    "sign(block=64)",
    "ternary(block=64)",
    "topk(0.1)",
    "topk(0.1)|int8",
    "topk(0.9)|sign",
    "threshold(0.01)|bf16",
    "randk(0.2)|fp16",
    "eden(1)",
    "eden(2.5)",
    "ecq(0.5)",
    "ecq(1)",
    "ecq(8)",
]
FLAT = ((20, 7), (10,))
MATRIX = ((64, 64),)


def vector(spec: str, layout: tuple[tuple[int, ...], ...]) -> dict[str, object]:
    """One body and what it decodes to, both as hexadecimal bytes (float32, little-endian)."""
    n = sum(math.prod(shape) for shape in layout)
    x = (rng_for(11).standard_t(3, n) * 0.01).astype(np.float32)
    body = parse(spec).encode(x, layout, rng_for(12))
    decoded = parse(spec).decode(body, n, layout).dense().astype("<f4")
    return {"spec": spec, "layout": layout, "body": body.hex(), "decoded": decoded.tobytes().hex()}


def packet() -> dict[str, object]:
    """One packet that carries its schema."""
    model = {
        "fc.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "bn.running_mean": np.array([0.5], np.float32),
        "steps": np.array(7, np.int64),
    }
    schema = Schema.of(model)
    flat, raw = schema.split(model)
    sent = Packet(
        kind=Kind.MODEL,
        spec="none",
        schema_digest=schema.digest,
        base_version=0,
        version=300,
        n=schema.n,
        body=parse("none").encode(flat, schema.layout, rng_for(0)),
        raw=raw,
        schema=schema.to_bytes(),
    )
    return {"bytes": pack(sent).hex(), "digest": schema.digest.hex(), "schema": sent.schema.hex()}


if __name__ == "__main__":
    vectors = [vector(spec, FLAT) for spec in SPECS] + [vector("lowrank(1)|int8", MATRIX)]
    text = json.dumps({"codecs": vectors, "packet": packet()}, indent=1)
    Path(__file__).with_name("vectors.json").write_text(text + "\n")
