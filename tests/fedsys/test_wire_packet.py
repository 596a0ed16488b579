"""A packet arrives as it was sent or is refused with a reason."""

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsys.errors import WireError
from fedsys.wire.packet import Kind, Packet, pack, pack_frames, unpack, unpack_frames
from fedsys.wire.schema import Schema

MODEL = {"w": np.ones((4, 5), np.float32), "steps": np.array(3, np.int64)}
SCHEMA = Schema.of(MODEL)
LIMIT = 10_000


def packet(**changes):
    fields = {
        "kind": Kind.UPDATE,
        "spec": "topk(0.01)|int8",
        "schema_digest": SCHEMA.digest,
        "base_version": 3,
        "version": 4,
        "n": SCHEMA.n,
        "body": b"body bytes",
        "raw": bytes(8),
    }
    return Packet(**(fields | changes))


def resealed(data):
    return data[:-4] + zlib.crc32(data[:-4]).to_bytes(4, "little")


@given(
    kind=st.sampled_from(Kind),
    base=st.integers(0, 2**63 - 1),
    version=st.integers(0, 2**63 - 1),
    body=st.binary(max_size=300),
    raw=st.binary(min_size=8, max_size=8),
)
def test_unpack_undoes_pack(kind, base, version, body, raw):
    sent = packet(kind=kind, base_version=base, version=version, body=body, raw=raw)
    assert unpack(pack(sent), schema=SCHEMA, max_bytes=LIMIT) == sent


def test_overhead_is_at_most_40_bytes():
    sent = packet(base_version=10**6, version=10**6 + 1)
    assert len(pack(sent)) - len(sent.body) - len(sent.raw) - len(sent.spec) <= 40


def test_a_schema_can_travel_along():
    sent = packet(schema=SCHEMA.to_bytes())
    got = unpack(pack(sent), schema=None, max_bytes=LIMIT)
    assert Schema.from_bytes(got.schema) == SCHEMA


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_any_flipped_bit_is_noticed(at, bit):
    data = bytearray(pack(packet()))
    data[at % len(data)] ^= 1 << bit
    with pytest.raises(WireError):
        unpack(bytes(data), schema=SCHEMA, max_bytes=LIMIT)


def test_every_truncation_and_extension_is_noticed():
    data = pack(packet())
    for length in range(len(data)):
        with pytest.raises(WireError):
            unpack(data[:length], schema=SCHEMA, max_bytes=LIMIT)
    with pytest.raises(WireError):
        unpack(data + b"\0", schema=SCHEMA, max_bytes=LIMIT)


@given(data=st.binary(max_size=120))
def test_noise_even_with_a_right_checksum_raises_only_wire_errors(data):
    for noise in (data, resealed(b"FS\x01" + data + bytes(4))):
        for schema in (SCHEMA, None):
            with pytest.raises(WireError):
                unpack(noise, schema=schema, max_bytes=LIMIT)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema_digest": bytes(8)}, "differs from the receiver's"),
        ({"n": 21}, "21 coded values, the model has 20"),
        ({"raw": bytes(7)}, "7 raw bytes, the model has 8"),
    ],
)
def test_a_packet_about_another_model_is_refused(changes, message):
    with pytest.raises(WireError, match=message):
        unpack(pack(packet(**changes)), schema=SCHEMA, max_bytes=LIMIT)


def test_other_protocol_is_refused_naming_both():
    data = bytearray(pack(packet()))
    data[2] = 9
    with pytest.raises(WireError, match="speaks protocol 9, this receiver 1"):
        unpack(resealed(bytes(data)), schema=SCHEMA, max_bytes=LIMIT)


def test_unknown_kind_and_bad_magic_are_refused():
    data = bytearray(pack(packet()))
    data[3] = 7
    with pytest.raises(WireError, match="kind 7"):
        unpack(resealed(bytes(data)), schema=SCHEMA, max_bytes=LIMIT)
    data[0] = 0
    with pytest.raises(WireError, match="not a fedsys packet"):
        unpack(bytes(data), schema=SCHEMA, max_bytes=LIMIT)


def test_a_packet_over_the_limit_is_refused_unread():
    with pytest.raises(WireError, match="at most 10 are accepted"):
        unpack(pack(packet()), schema=SCHEMA, max_bytes=10)


def test_a_length_that_claims_more_than_there_is_is_refused():
    data = pack(packet())
    at = data.index(b"topk") - 3
    assert data[at] == len("topk(0.01)|int8")
    huge = data[:at] + b"\xff\xff\x03" + data[at + 1 :]
    with pytest.raises(WireError):
        unpack(resealed(huge), schema=SCHEMA, max_bytes=1 << 30)


@given(st.lists(st.binary(max_size=200), max_size=6))
def test_frames_come_back(frames):
    assert [bytes(f) for f in unpack_frames(pack_frames(frames), 6)] == frames


@given(st.binary(max_size=60))
def test_damaged_frames_raise_only_wire_errors(data):
    try:
        frames = unpack_frames(data, 5)
    except WireError:
        return
    assert pack_frames([bytes(frame) for frame in frames]) == data


def test_too_many_frames_are_refused():
    with pytest.raises(WireError, match="more than the 2"):
        unpack_frames(pack_frames([b"a", b"b", b"c"]), 2)
