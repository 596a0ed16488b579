"""The bytes in vectors.json decode to the values beside them, here and by docs/wire.md alone.

The second half of this file is a decoder written from docs/wire.md in plain Python: no numpy, no
entropy coding library. If it needs a change, the format has changed: raise PROTOCOL.
"""

import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from fedsys.codecs._chain import parse
from fedsys.wire.packet import Kind, unpack
from fedsys.wire.schema import Schema

VECTORS = json.loads((Path(__file__).parent / "vectors" / "vectors.json").read_text())
by_spec = pytest.mark.parametrize("vector", VECTORS["codecs"], ids=lambda v: v["spec"])
REFERENCE = ["none", "bf16", "int8(block=64)", "topk(0.1)", "topk(0.1)|int8"]
REFERENCE += ["ecq(0.5)", "ecq(1)", "ecq(8)", "threshold(0.01)|bf16", "randk(0.2)|fp16"]


@by_spec
def test_vector_decodes(vector):
    expected = np.frombuffer(bytes.fromhex(vector["decoded"]), "<f4")
    layout = tuple(tuple(shape) for shape in vector["layout"])
    update = parse(vector["spec"]).decode(bytes.fromhex(vector["body"]), expected.size, layout)
    np.testing.assert_array_equal(update.dense(), expected)


def test_packet_vector_unpacks():
    data = bytes.fromhex(VECTORS["packet"]["bytes"])
    packet = unpack(data, schema=None, max_bytes=1000)
    schema = Schema.from_bytes(packet.schema)
    assert packet.kind == Kind.MODEL
    assert (packet.base_version, packet.version, packet.spec) == (0, 300, "none")
    assert schema.digest.hex() == VECTORS["packet"]["digest"]
    joined = schema.join(np.frombuffer(packet.body, "<f4"), packet.raw)
    assert joined["fc.weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert joined["bn.running_mean"].tolist() == [0.5]
    assert joined["steps"] == 7
    assert data[-4:] == zlib.crc32(data[:-4]).to_bytes(4, "little")


@pytest.mark.parametrize("spec", REFERENCE)
def test_plain_python_decoder_agrees(spec):
    vector = next(v for v in VECTORS["codecs"] if v["spec"] == spec)
    expected = [v for (v,) in struct.iter_unpack("<f", bytes.fromhex(vector["decoded"]))]
    assert decode(spec, bytes.fromhex(vector["body"]), len(expected)) == expected


def f32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


class Bytes:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        self.at += count
        assert self.at <= len(self.data)
        return self.data[self.at - count : self.at]

    def varint(self):
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def rest(self):
        return self.take(len(self.data) - self.at)


class Ans:
    """A stack of 32-bit words below a 64-bit state; probabilities have 24 bits."""

    def __init__(self, data):
        self.words = [word for (word,) in struct.iter_unpack("<I", data)]
        self.state = 0
        for _ in range(2):
            if self.words:
                self.state = self.state << 32 | self.words.pop()

    def pull(self, edges):
        low = self.state & 0xFFFFFF
        symbol = next(s for s in range(len(edges) - 1) if edges[s] <= low < edges[s + 1])
        width = edges[symbol + 1] - edges[symbol]
        self.state = (self.state >> 24) * width + low - edges[symbol]
        if self.state < 1 << 32 and self.words:
            self.state = self.state << 32 | self.words.pop()
        return symbol

    def pull_bits(self, count):
        size = 1 << (24 - count)
        low = self.state & 0xFFFFFF
        self.state = (self.state >> 24) * size + low % size
        if self.state < 1 << 32 and self.words:
            self.state = self.state << 32 | self.words.pop()
        return low // size

    def pull_integers(self, buckets, mantissa):
        values = []
        widths = [max(0, (bucket >> mantissa) - 1) for bucket in buckets]
        for bucket, width in zip(buckets, widths, strict=True):
            values.append((bucket - (width << mantissa)) << width)
        for width in range(1, max(widths, default=0) + 1):
            for shift in range(0, width, 16):
                for at in range(len(values)):
                    if widths[at] == width:
                        values[at] += self.pull_bits(min(16, width - shift)) << shift
        return values


def edges_of(weights):
    if len(weights) < 2 or not sum(weights) > 0:
        weights = [1.0] * max(2, len(weights))
    total = 0.0
    for weight in weights:
        total += weight
    scale = ((1 << 24) - len(weights)) / total
    edges, running = [], 0.0
    for at, weight in enumerate(weights):
        edges.append(int(running * scale) + at)
        running += weight
    return [*edges, 1 << 24]


def table_weights(table):
    steps = [256, 279, 304, 332, 362, 395, 431, 470]
    return [float(steps[b - 1 & 7] << (b - 1 >> 3)) if b else 0.0 for b in table]


def power(base, exponent):
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def bucket_start(bucket, mantissa):
    width = max(0, (bucket >> mantissa) - 1)
    return (bucket - (width << mantissa)) << width


def bucket_of(value, mantissa):
    return next(b for b in range(1 << 20) if bucket_start(b + 1, mantissa) > value)


def decode_index(data, k, n):
    source = Bytes(data)
    if not k:
        return []
    if source.varint() == 0:
        last = bucket_of(n - k, 2)
        powers = [power((n - k) / n, bucket_start(b, 2)) for b in range(last + 2)]
        weights = [powers[b] - powers[b + 1] for b in range(last + 1)]
    else:
        weights = table_weights(source.take(source.varint()))
    ans, edges = Ans(source.rest()), edges_of(weights)
    buckets = [ans.pull(edges) for _ in range(k)]
    index, at = [], -1
    for gap in ans.pull_integers(buckets, 2):
        at += gap + 1
        index.append(at)
    return index


def decode_levels(ans, count, step, width, shifts, edges):
    symbols = [ans.pull(edges) - width for _ in range(count)]
    magnitudes = ans.pull_integers([abs(s) for s in symbols], 3)
    values = []
    for symbol, magnitude in zip(symbols, magnitudes, strict=True):
        shift = (shifts[min(magnitude, len(shifts)) - 1] - 128) / 128 if magnitude else 0
        values.append(
            f32((magnitude + shift) * step * (-1 if symbol < 0 else 1)) if symbol else 0.0
        )
    return values


def decode_ecq(data, n):
    source = Bytes(data)
    sparse = source.varint()
    step = struct.unpack("<f", b"\0" + source.take(3))[0]
    width = source.varint()
    shifts = source.take(min(width, 4))
    edges = edges_of(table_weights(source.take(2 * width + 1)))
    if not sparse:
        ans = Ans(source.rest())
        return decode_levels(ans, n, step, width, shifts, edges)
    k = source.varint()
    index = decode_index(source.take(source.varint()), k, n)
    values = decode_levels(Ans(source.rest()), k, step, width, shifts, edges)
    return scatter(index, values, n)


def scatter(index, values, n):
    out = [0.0] * n
    for at, value in zip(index, values, strict=True):
        out[at] = value
    return out


def splitmix64(seed, at):
    mask = (1 << 64) - 1
    z = (seed + (at + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
    return z ^ z >> 31


def decode(spec, body, n):
    name, _, following = spec.partition("|")
    if name.startswith(("topk", "threshold", "randk")):
        source = Bytes(body)
        side = source.take(source.varint())
        if name.startswith("randk"):
            seed, k = int.from_bytes(side, "little"), max(1, round(0.2 * n))
            edges = [at * n // k for at in range(k + 1)]
            index = [
                edges[at] + ((splitmix64(seed, at) >> 32) * (edges[at + 1] - edges[at]) >> 32)
                for at in range(k)
            ]
        else:
            places = Bytes(side)
            k = places.varint()
            index = decode_index(places.rest(), k, n)
        return scatter(index, decode(following or "none", source.rest(), k), n)
    if name.startswith("ecq"):
        return decode_ecq(body, n)
    if name == "none":
        return [v for (v,) in struct.iter_unpack("<f", body)]
    if name == "bf16":
        return [struct.unpack("<f", b"\0\0" + body[at : at + 2])[0] for at in range(0, 2 * n, 2)]
    if name == "fp16":
        exponent = struct.unpack_from("<h", body)[0]
        return [f32(v * 2.0**exponent) for (v,) in struct.iter_unpack("<e", body[2:])]
    block = 64 if "64" in name else 256
    count = -(-n // block)
    scales = [struct.unpack("<f", b"\0\0" + body[2 * at : 2 * at + 2])[0] for at in range(count)]
    codes = struct.unpack(f"<{n}b", body[2 * count :])
    return [f32(code * scales[at // block]) for at, code in enumerate(codes)]
