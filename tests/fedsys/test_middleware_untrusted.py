"""Replies and messages from strangers: WireError, nothing else, and nothing remembered."""

import copy

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedsys._flwr_private import set_task_identity
from fedsys.codecs._chain import parse
from fedsys.codecs._feedback import ResidualRule
from fedsys.config.schema import CodecConfig
from fedsys.errors import WireError
from fedsys.middleware.control import RECORD, STYPE, Control, unwrap, wrap
from fedsys.middleware.mod import codec_mod
from fedsys.middleware.server import ServerCodec
from fedsys.rng import rng_for
from fedsys.wire.packet import Kind, Packet, pack, pack_frames
from fedsys.wire.schema import Schema

ARRAYS = {
    "w": np.linspace(-1, 1, 600, dtype=np.float32).reshape(30, 20),
    "bn.running_var": np.ones(5, np.float32),
    "bn.num_batches_tracked": np.array(3, np.int64),
}
SCHEMA = Schema.of(ARRAYS)
UPLINKS = ["none", "topk(0.1)|int8", "topk(0.1)", "int8", "sign", "randk(0.1)", "ternary", "eden"]
UNTRUSTED = "untrusted_codec:Impl"


@pytest.fixture(autouse=True)
def server_identity():
    set_task_identity(1)


def server_for(uplink="topk(0.1)|int8", downlink="int8"):
    config = CodecConfig(uplink=uplink, downlink=downlink, first_model="none")
    server = ServerCodec(SCHEMA, config, 1, True)
    server.advance(ARRAYS, downlink)
    return server


def update(uplink="topk(0.1)|int8", **changed):
    """An honest reply to model 1, but for ``changed``."""
    codec = parse(uplink)
    values = rng_for(3).standard_normal(600).astype(np.float32)
    body = codec.encode(values, SCHEMA.layout, rng_for(4))
    exact, raw = SCHEMA.split_exact(ARRAYS)
    packet = {
        "kind": Kind.UPDATE,
        "spec": codec.spec,
        "schema_digest": SCHEMA.digest,
        "base_version": 1,
        "version": 1,
        "n": 600,
        "body": body if codec.stages else exact,
        "raw": raw,
    }
    return pack(Packet(**packet | changed))


def reply_of(packet):
    return RecordDict({"x": wrap(packet)})


def assert_refused(server, content, uplink="topk(0.1)|int8", match=None):
    before = copy.deepcopy((server.held, server.acked, server.downlink.version))
    with pytest.raises(WireError, match=match):
        server.receive(content, 1, uplink)
    assert (server.held, server.acked, server.downlink.version) == before


@pytest.mark.parametrize("uplink", UPLINKS)
@given(data=st.data())
def test_truncated_and_damaged_replies(uplink, data):
    server, whole = server_for(uplink), update(uplink)
    server.receive(reply_of(whole), 1, uplink)
    at = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    for bad in (whole[:at], bytes(flipped), whole + b"\0", b""):
        assert_refused(server, reply_of(bad), uplink)


@pytest.mark.parametrize("uplink", UPLINKS[1:])
@given(data=st.data())
def test_a_stranger_with_a_right_checksum_still_gets_no_further(uplink, data):
    """Bodies that a malicious client chose: decoded to the right shape, or refused."""
    server, codec = server_for(uplink), parse(uplink)
    honest = codec.encode(ARRAYS["w"].reshape(-1), SCHEMA.layout, rng_for(1))
    body = bytearray(data.draw(st.sampled_from([honest, data.draw(st.binary(max_size=80))])))
    if body:
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        received = server.receive(reply_of(update(uplink, body=bytes(body))), 1, uplink)
    except WireError:
        return
    assert received.update.dense().shape == (600,)
    assert np.isfinite(received.update.dense()).all()


RAW = SCHEMA.split(ARRAYS)[1]
NAN_RAW = np.full(5, np.nan, "<f4").tobytes() + RAW[20:]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"kind": Kind.MODEL}, "MODEL based on model 1, expected an UPDATE"),
        ({"kind": Kind.DELTA}, "DELTA"),
        ({"base_version": 2}, "based on model 2, expected an UPDATE of model 1"),
        ({"spec": "int8"}, "codec 'int8', asked for 'topk"),
        ({"spec": UNTRUSTED}, "codec 'untrusted_codec:Impl', asked for"),
        ({"spec": "none"}, "codec 'none', asked for"),
        ({"schema_digest": b"\0" * 8}, "differs from the receiver's"),
        ({"n": 601}, "601 coded values, the model has 600"),
        ({"n": 1 << 39}, "coded values, the model has 600"),
        ({"raw": RAW[:-1]}, "raw bytes"),
        ({"raw": NAN_RAW}, "'bn.running_var' holds NaN"),
        ({"body": b""}, None),
        ({"body": b"\xff" * 40}, None),
        ({"body": bytes(20_000)}, "are accepted"),
    ],
)
def test_replies_that_are_not_what_was_asked_for(changed, reason):
    assert_refused(server_for(), reply_of(update(**changed)), match=reason)


def test_replies_without_a_packet():
    server = server_for()
    assert_refused(server, RecordDict(), match="no packet")
    plain = ArrayRecord({name: Array(array) for name, array in ARRAYS.items()})
    assert_refused(server, RecordDict({"x": plain}), match="no packet")


# ---- what a client is told


def context(tmp_path, **run_config):
    return Context(1, 7, {"state-dir": str(tmp_path)}, RecordDict(), run_config)


def ask(tmp_path, content, change=lambda arrays: arrays, **run_config):
    """Let a client train on ``content``; ``change`` is what its app does to the arrays."""

    def app(message, context):
        arrays = {k: a.numpy() for k, a in message.content["x"].items()}
        record = ArrayRecord({k: Array(a) for k, a in change(arrays).items()})
        return Message(RecordDict({"x": record}), reply_to=message)

    return codec_mod(Message(content, 7, "train"), context(tmp_path, **run_config), app)


def honest(server=None, uplink="topk(0.1)|int8"):
    arrays, control = (server or server_for()).records_for(7, uplink)
    return RecordDict({"x": arrays, RECORD: control})


@pytest.mark.parametrize("key", ["s", "u", "a", "o", "c", "f", "d", "b"])
@pytest.mark.parametrize("value", [None, [1.5], b"x"])
def test_a_control_record_with_a_missing_or_wrong_word(tmp_path, key, value):
    content = honest()
    if value is None:
        del content[RECORD][key]
    else:
        content[RECORD][key] = value
    with pytest.raises(WireError, match=f"control record: '{key}'"):
        ask(tmp_path, content)


@pytest.mark.parametrize("decay", [-0.1, 1.1, float("nan"), float("inf")])
def test_a_decay_that_is_none(tmp_path, decay):
    content = honest()
    content[RECORD]["d"] = decay
    with pytest.raises(WireError, match="decay"):
        ask(tmp_path, content)


def test_a_packet_without_control_record(tmp_path):
    content = honest()
    del content[RECORD]
    with pytest.raises(WireError, match="without the record 'fedsys'"):
        ask(tmp_path, content)


@given(data=st.data())
def test_a_damaged_model_is_refused_and_not_kept(tmp_path_factory, data):
    folder, content = tmp_path_factory.mktemp("state"), honest()
    whole = unwrap(content)[1]
    at = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    for bad in (whole[:at], bytes(flipped), whole + b"\1"):
        content["x"] = wrap(bad)
        with pytest.raises(WireError):
            ask(folder, content)
    assert not list(folder.rglob("*.safetensors"))


def claim(spec, n, body=b"", shape=None):
    """A whole model that says it is large."""
    schema = Schema.of({"w": np.zeros(1, np.float32)})
    huge = Schema((type(schema.tensors[0])("w", shape or (n,), "float32"),))
    packet = Packet(
        kind=Kind.MODEL,
        spec=spec,
        schema_digest=huge.digest,
        base_version=0,
        version=1,
        n=n,
        body=body,
        raw=b"",
        schema=huge.to_bytes(),
    )
    return pack_frames([pack(packet)])


@pytest.mark.parametrize(
    "spec", ["none", "fp16", "int8", "int4", "topk(0.1)", "randk(0.1)", "sign", UNTRUSTED]
)
@pytest.mark.parametrize("n", [1 << 31, 1 << 38])
def test_a_model_that_claims_to_be_huge_costs_no_memory(tmp_path, spec, n):
    content = honest()
    content["x"] = wrap(claim(spec, n, body=b"\x7f" * 50))
    with pytest.raises(WireError):
        ask(tmp_path, content)


def test_a_codec_from_outside_is_imported_only_if_the_run_config_names_it(tmp_path, monkeypatch):
    (tmp_path / "untrusted_codec.py").write_text(
        "from fedsys.codecs.int8 import Impl\nprint('imported')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for spec in ("untrusted_codec:Impl", "untrusted_codec:", "topk(0.1)|untrusted_codec:Impl"):
        content = honest()
        content[RECORD]["u"] = spec
        for known in ("", "other:Impl", "my_untrusted_codec:Impl", "untrusted_codec"):
            with pytest.raises(WireError, match="names a module"):
                ask(tmp_path, content, experiment=f'uplink = "{known}"')

    reply = ask(tmp_path, content, experiment='uplink = "topk(0.10)|untrusted_codec:Impl"')
    assert unwrap(reply.content) is not None


# ---- what an app may answer


def test_tensors_in_another_order_or_dtype_are_brought_to_the_models(tmp_path):
    server = server_for("none")

    def careless(arrays):
        changed = {name: array.astype(np.float64) for name, array in arrays.items()}
        return dict(reversed(changed.items()))

    reply = ask(tmp_path, honest(server, "none"), careless)
    received = server.receive(reply.content, 1, "none")

    assert list(received.exact) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert received.exact[name].dtype == array.dtype
        np.testing.assert_array_equal(received.exact[name], array)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda a: a | {"w": a["w"][:, :10]}, r"'w' has shape \(30, 10\), the model has \(30, 20"),
        (lambda a: {"w": a["w"]}, "'bn.running_var' is missing"),
        (lambda a: a | {"head": a["w"]}, "'head' is not one of the model"),
        (lambda a: a | {"w": a["w"].astype(complex)}, "'w' is complex128, the model has float32"),
        (lambda a: a | {"bn.num_batches_tracked": np.array(np.nan)}, "NaN"),
    ],
)
def test_tensors_that_do_not_fit_are_named_at_once(tmp_path, change, reason):
    with pytest.raises(WireError, match=reason):
        ask(tmp_path, honest(), change)


def test_an_answer_without_tensors_goes_back_as_it_is(tmp_path):
    def app(message, context):
        return Message(RecordDict({"info": ConfigRecord({"cores": 4})}), reply_to=message)

    reply = codec_mod(Message(honest(), 7, "train.hello"), context(tmp_path), app)
    assert dict(reply.content["info"]) == {"cores": 4}
    assert list(reply.content) == ["info"]


def test_a_message_of_a_server_without_codecs_passes_untouched(tmp_path):
    plain = ArrayRecord({name: Array(array) for name, array in ARRAYS.items()})
    reply = ask(tmp_path, RecordDict({"x": plain}))

    assert list(reply.content) == ["x"]
    assert {array.stype for array in reply.content["x"].values()} == {"numpy.ndarray"}
    assert STYPE != "numpy.ndarray"
    assert not list(tmp_path.iterdir())


def test_the_words_of_the_server_survive_the_record():
    control = Control(
        seed=-3,
        uplink="int8",
        acked_version=2,
        oldest_version=1,
        checksum=(1 << 32) - 1,
        feedback=False,
        rule=ResidualRule(decay=0.5, clip=2.0),
        trials=("int8", "sign"),
    )
    assert Control.from_content(RecordDict({RECORD: control.to_record()})) == control
