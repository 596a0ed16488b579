"""Small messages travel as one object, and come out as they went in."""

import json

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedsys._flwr_private import set_task_identity
from fedsys.errors import WireError
from fedsys.middleware.control import wrap
from fedsys.middleware.envelope import (
    SEALED,
    seal,
    sealed_message,
    unseal,
    unsealed_reply,
)

names = st.text(max_size=12)
floats = st.floats(allow_nan=False)
config = st.dictionaries(
    names,
    st.one_of(
        st.booleans(), st.integers(-(2**63), 2**63 - 1), floats, names, st.lists(floats, max_size=3)
    ),
    max_size=5,
)
metrics = st.dictionaries(names, st.one_of(st.integers(-(2**63), 2**63 - 1), floats), max_size=5)


@given(
    packet=st.binary(max_size=300),
    settings=config,
    figures=metrics,
    piece_bytes=st.integers(32, 600),
)
def test_what_was_sealed_comes_out_unchanged(packet, settings, figures, piece_bytes):
    content = RecordDict(
        {
            "arrays": wrap(packet),
            "config": ConfigRecord(settings),
            "metrics": MetricRecord(figures),
            "two": ArrayRecord(
                {"a": Array("float32", (1, 1), "raw", b"1234"), "b": Array("u", (), "", b"")}
            ),
        }
    )
    sealed = seal(content, piece_bytes)
    pieces = [record["r"] for record in sealed.values()]
    first, *rest = [len(piece) for piece in pieces]
    # The first of several is half a piece, so that two at once do not end at once.
    assert not rest or first == (piece_bytes + 1) // 2
    assert rest[:-1] == [piece_bytes] * (len(rest) - 1)
    assert max(first, *rest, 0) <= piece_bytes
    assert unseal(sealed) == content


def test_types_survive_as_flower_means_them():
    content = RecordDict(
        {"a": wrap(b"x"), "c": ConfigRecord({"one": 1, "one.": 1.0, "yes": True, "text": "1"})}
    )
    back = unseal(seal(content)).config_records["c"]
    assert [type(back[key]) for key in ("one", "one.", "yes", "text")] == [int, float, bool, str]


@pytest.mark.parametrize(
    "content",
    [
        RecordDict({"a": wrap(b"x"), "c": ConfigRecord({"blob": b"bytes"})}),
        RecordDict({"a": wrap(b"x"), "c": ConfigRecord({"long": "x" * (1 << 21)})}),
        RecordDict({"m": MetricRecord({"loss": 1.0})}),
        RecordDict(),
    ],
    ids=["bytes in the configuration", "long configuration", "no arrays", "empty"],
)
def test_what_cannot_or_need_not_be_sealed_stays_as_it_is(content):
    assert seal(content) is content
    assert unseal(content) is content


@given(st.binary(max_size=200))
def test_garbage_is_a_wire_error(data):
    with pytest.raises(WireError):
        unseal(RecordDict({SEALED: ConfigRecord({"r": b"\xff" + data})}))


def _bytes(table, data=b""):
    text = json.dumps(table).encode()
    return len(text).to_bytes(4, "little") + text + data


@pytest.mark.parametrize(
    "data",
    [
        _bytes({"a": ["a", [["k", "uint8", [9], "s", 9]]]}, b"short"),
        _bytes({"a": ["a", [["k", "uint8", [9], "s", -1]]]}, b"short"),
        _bytes({"a": ["a", [["k", "uint8", [9], "s", 1.5]]]}, b"short"),
        _bytes({}, b"left over"),
        _bytes({"a": ["x", {}]}),
        _bytes({"m": ["m", {"loss": "text"}]}),
        _bytes({"m": ["m", 3]}),
        _bytes({"m": 3}),
        _bytes(3),
        (1 << 20).to_bytes(4, "little") + b"[" * (1 << 16),
        b"",
        bytes(1 << 18),
        (1 << 30).to_bytes(4, "little") + b"[]",
    ],
)
def test_damage_and_malice_are_wire_errors(data):
    with pytest.raises(WireError):
        unseal(RecordDict({SEALED: ConfigRecord({"r": data})}))


def test_a_piece_that_is_missing_or_strange_is_a_wire_error():
    sealed = seal(RecordDict({"a": wrap(bytes(5000))}), 1024)
    for name in list(sealed):
        lacking = RecordDict({key: record for key, record in sealed.items() if key != name})
        if name != SEALED:
            with pytest.raises(WireError):
                unseal(lacking)
    with pytest.raises(WireError):
        unseal(RecordDict({**sealed, "more": ConfigRecord({"r": b""})}))


def test_a_damaged_reply_becomes_an_error_of_that_node():
    set_task_identity(1)
    asked = Message(RecordDict(), 7, "train")
    reply = Message(RecordDict({SEALED: ConfigRecord({"r": b"\0\0"})}), reply_to=asked)
    opened = unsealed_reply(reply)
    assert opened.has_error()
    assert "node" in opened.error.reason


def test_sealing_a_message_leaves_the_message_that_was_given():
    set_task_identity(1)
    content = RecordDict({"arrays": wrap(b"x")})
    message = Message(content, 7, "train")
    assert list(sealed_message(message, 1024).content) == [SEALED]
    assert message.content is content
