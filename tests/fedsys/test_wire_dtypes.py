"""Every float dtype through every codec, from server to client and back; ``none`` is exact."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

from fedsys._flwr_private import set_task_identity
from fedsys.codecs._base import NonFiniteError
from fedsys.config.schema import CodecConfig
from fedsys.errors import WireError
from fedsys.middleware.control import RECORD, unwrap, wrap
from fedsys.middleware.mod import codec_mod
from fedsys.middleware.server import ServerCodec
from fedsys.registry import available
from fedsys.rng import rng_for
from fedsys.wire.packet import Kind, Packet, pack, unpack
from fedsys.wire.schema import Schema

DTYPES = ["float16", "float32", "float64", "bfloat16"]
SPECS = available("fedsys.codecs")
SHAPES = {"a.weight": (30, 20), "b.weight": (600,), "scalar": (), "empty": (3, 0)}
VALUES = sum(int(np.prod(shape)) for shape in SHAPES.values())


def drawn(dtype, seed):
    """Tensors of the dtype, and a counter, as a training step could leave them."""
    rng = rng_for(seed, "weights")
    arrays = {}
    for name, shape in SHAPES.items():
        values = np.asarray(rng.standard_normal(shape), np.float64)
        if dtype == "bfloat16":
            bits = np.asarray(values.astype(np.float32).view(np.uint32) >> 16)
            arrays[name] = np.asarray(bits, np.uint16)
        else:
            arrays[name] = values.astype(dtype)
    return arrays | {"steps": np.array(seed, np.int64)}


def schema_for(dtype):
    marked = frozenset(SHAPES) if dtype == "bfloat16" else frozenset()
    return Schema.of(drawn(dtype, 0), bfloat16=marked)


@pytest.fixture(autouse=True)
def server_identity():
    set_task_identity(1)


class Exchange:
    """A server and one client with a folder of its own."""

    def __init__(self, folder, dtype, uplink="none", downlink="none"):
        self.schema, self.uplink, self.downlink = schema_for(dtype), uplink, downlink
        config = CodecConfig(uplink=uplink, downlink=downlink)
        self.server = ServerCodec(self.schema, config, seed=1, holds=downlink != "none")
        self.context = Context(0, 7, {"state-dir": str(folder)}, RecordDict(), {})
        self.got = None

    def train(self, model, trained):
        """Send ``model``; the client remembers what it got and answers ``trained``."""

        def app(message, context):
            self.got = {k: a.numpy() for k, a in message.content["arrays"].items()}
            record = ArrayRecord({k: Array(a) for k, a in trained.items()})
            return Message(RecordDict({"arrays": record}), reply_to=message)

        version = self.server.advance(model, self.downlink)
        arrays, control = self.server.records_for(7, self.uplink)
        message = Message(RecordDict({"arrays": arrays, RECORD: control}), 7, "train")
        self.sent_bytes = len(unwrap(message.content)[1])
        reply = codec_mod(message, self.context, app)
        received = self.server.receive(reply.content, version, self.uplink)
        self.server.seen(7, version)
        self.server.accept(7, version)
        return received


def assert_same(left, right):
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].dtype == right[name].dtype
        np.testing.assert_array_equal(left[name], right[name])


@pytest.mark.parametrize(("dtype", "item_bytes"), [*zip(DTYPES, (2, 4, 8, 2), strict=True)])
def test_none_takes_each_dtypes_own_bytes_and_is_exact_both_ways(tmp_path, dtype, item_bytes):
    exchange = Exchange(tmp_path, dtype)
    model, trained = drawn(dtype, 1), drawn(dtype, 2)
    received = exchange.train(model, trained)

    assert_same(exchange.got, model)
    assert_same(received.exact, trained)
    assert received.size_bytes - item_bytes * VALUES - 8 <= 64
    assert exchange.sent_bytes - item_bytes * VALUES - 8 <= 64 + len(exchange.schema.to_bytes())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spec", SPECS)
def test_every_codec_takes_every_float_dtype(tmp_path, dtype, spec):
    exchange = Exchange(tmp_path, dtype, uplink=spec, downlink=spec)
    for seed in range(3):
        received = exchange.train(drawn(dtype, seed), drawn(dtype, seed + 1))
        held = exchange.schema.split(exchange.got)[0]

        np.testing.assert_array_equal(held, exchange.server.downlink.sent)
        assert {k: a.dtype for k, a in exchange.got.items()} == {
            k: a.dtype for k, a in drawn(dtype, 0).items()
        }
        assert received.update.dense().shape == (VALUES,)
        assert received.raw["steps"] == seed + 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_residual_that_a_codec_left_goes_out_with_none(tmp_path, dtype):
    exchange = Exchange(tmp_path, dtype, uplink="topk(0.1)")
    model, trained = drawn(dtype, 1), drawn(dtype, 2)
    total = exchange.schema.split(trained)[0] - exchange.schema.split(model)[0]
    first = exchange.train(model, trained).update.dense()
    exchange.uplink = "none"
    second = exchange.train(model | {"steps": np.array(5)}, model).update.dense()

    precision = {"float16": 2**-8, "bfloat16": 2**-5}.get(dtype, 2**-20)
    np.testing.assert_allclose(first + second, total, atol=precision)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_none_sends_no_value_that_is_not_finite(tmp_path, bad):
    exchange, model = Exchange(tmp_path, "float32"), drawn("float32", 1)
    broken = model | {"b.weight": np.full(600, bad, np.float32)}
    with pytest.raises(NonFiniteError):
        exchange.train(model, broken)
    with pytest.raises(NonFiniteError):
        exchange.train(broken, model)


@pytest.mark.parametrize(("bad", "dtype"), [(np.nan, "float32"), (1e300, "float64")])
def test_a_stranger_that_sends_values_beyond_float32_in_none_is_refused(tmp_path, bad, dtype):
    exchange, model = Exchange(tmp_path, dtype), drawn(dtype, 1)
    exchange.server.advance(model, "none")
    schema = exchange.schema
    body, raw = schema.split_exact(model | {"b.weight": np.full(600, bad, dtype)})
    for content in (body, body[:-1], b""):
        packet = Packet(
            kind=Kind.UPDATE,
            spec="none",
            schema_digest=schema.digest,
            base_version=1,
            version=1,
            n=schema.n,
            body=content,
            raw=raw,
        )
        with pytest.raises(WireError):
            exchange.server.receive(RecordDict({"arrays": wrap(pack(packet))}), 1, "none")


def test_an_update_of_an_older_model_needs_that_model(tmp_path):
    exchange = Exchange(tmp_path, "float32")
    model, trained = drawn("float32", 1), drawn("float32", 2)
    exchange.train(model, trained)
    base = exchange.server.downlink.sent
    body, raw = exchange.schema.split_exact(trained)
    whole = unpack_update(exchange.schema, body, raw)
    exchange.server.advance(drawn("float32", 3), "none")

    update = exchange.server.receive(whole, 1, "none", base).update
    np.testing.assert_array_equal(update.dense(), exchange.schema.split(trained)[0] - base)
    with pytest.raises(ValueError, match="needs that model"):
        exchange.server.receive(whole, 1, "none")


def unpack_update(schema, body, raw):
    packet = Packet(
        kind=Kind.UPDATE,
        spec="none",
        schema_digest=schema.digest,
        base_version=1,
        version=1,
        n=schema.n,
        body=body,
        raw=raw,
    )
    assert unpack(pack(packet), schema=schema, max_bytes=1 << 20) == packet
    return RecordDict({"arrays": wrap(pack(packet))})
