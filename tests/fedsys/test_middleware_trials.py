"""Codecs tried on a sample of the update, and residual rules, from server to client and back."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedsys._flwr_private import set_task_identity
from fedsys.codecs._chain import parse
from fedsys.config.schema import CodecConfig
from fedsys.errors import WireError
from fedsys.middleware.control import MAX_TRIALS, RECORD, Control
from fedsys.middleware.mod import codec_mod
from fedsys.middleware.server import ServerCodec
from fedsys.middleware.trials import read_trials, trial_figures
from fedsys.rng import rng_for
from fedsys.wire.schema import Schema

LADDER = ("int8", "int4", "topk(0.1)|int8", "topk(0.01)|int8")
N = 8192


@pytest.fixture(autouse=True)
def server_identity():
    set_task_identity(1)


class Client:
    """One client of a server with the given codec configuration."""

    def __init__(self, folder, **config):
        self.model = {"w": np.zeros(N, np.float32)}
        schema = Schema.of(self.model)
        self.config = CodecConfig(**config)
        self.server = ServerCodec(schema, self.config, seed=1, holds=False)
        self.context = Context(0, 7, {"state-dir": str(folder)}, RecordDict(), {})

    def round(self, delta, trials=(), take_part=True):
        """Train by ``delta``; what the server received, and the reply."""
        self.model["w"] = self.model["w"] + np.float32(1)
        version = self.server.advance(self.model, "none")
        if not take_part:
            return None, None
        trained = {"w": Array(self.model["w"] + delta)}

        def app(message, context):
            return Message(RecordDict({"arrays": ArrayRecord(trained)}), reply_to=message)

        arrays, control = self.server.records_for(7, self.config.uplink, trials)
        message = Message(RecordDict({"arrays": arrays, RECORD: control}), 7, "train")
        reply = codec_mod(message, self.context, app)
        received = self.server.receive(reply.content, version, self.config.uplink)
        self.server.accept(7, version)
        return received.update.dense(), reply


def drawn(seed):
    """A quarter of an integer, so that adding it to a small whole number and back is exact."""
    return (rng_for(seed).integers(-4000, 4000, N) / 4).astype(np.float32)


def test_beta_in_every_round_is_sparseloco(tmp_path):
    uplink, beta = "topk(0.02,chunk=4096)|int2", 0.5
    client = Client(tmp_path, uplink=uplink, residual_decay_per_round=beta)
    codec, paper = parse(uplink), np.zeros(N, np.float32)
    for at in range(6):
        paper = np.float32(beta) * paper + drawn(at)
        sent = codec.decode(codec.encode(paper, ((N,),), rng_for(0)), N, ((N,),)).dense()
        paper = paper - sent

        np.testing.assert_array_equal(client.round(drawn(at))[0], sent)


@pytest.mark.parametrize(("max_age", "kept"), [(1, False), (2, True), (None, True)])
def test_a_residual_is_dropped_after_its_age(tmp_path, max_age, kept):
    client = Client(tmp_path, uplink="topk(0.5)", residual_max_age_versions=max_age)
    first, _ = client.round(drawn(1))
    client.round(None, take_part=False)
    second, _ = client.round(np.zeros(N, np.float32))

    assert np.any(second) == kept
    if kept:
        np.testing.assert_array_equal(first + second, drawn(1))


def test_a_residual_is_clipped_to_the_update(tmp_path):
    client = Client(tmp_path, uplink="topk(0.01)", residual_clip=0.5)
    client.round(drawn(1))
    small = np.zeros(N, np.float32)
    small[0] = 4
    _, reply = client.round(small)
    norm = reply.content[RECORD]["residual-norm"]
    assert 0 < norm <= 4 * 1.5


def test_a_client_says_what_other_codecs_would_have_done(tmp_path):
    client = Client(tmp_path, uplink="topk(0.1)|int8")
    _, reply = client.round(drawn(1), trials=LADDER)
    trials = read_trials(reply.content, LADDER)

    assert [trial.spec for trial in trials] == list(LADDER)
    assert trials[2].nmse == pytest.approx(reply.content[RECORD]["nmse"])
    assert trials[0].bits == pytest.approx(8 + 16 / 256, abs=0.01)
    assert [t.bits for t in trials] == sorted((t.bits for t in trials), reverse=True)
    assert [t.nmse for t in trials] == sorted(t.nmse for t in trials)


def test_nothing_is_tried_unless_asked(tmp_path):
    _, reply = Client(tmp_path, uplink="int8").round(drawn(1))
    assert read_trials(reply.content, LADDER) == ()
    assert set(reply.content[RECORD]) == {"update-norm", "residual-norm", "nmse"}


def test_trials_of_an_empty_update_have_figures():
    figures = trial_figures([parse("int8")], np.zeros(0, np.float32), 0)
    assert all(np.isfinite(values).all() for values in figures.values())


@pytest.mark.parametrize(
    ("bits", "nmse"),
    [
        ([1.0], [0.5]),
        ([1.0, 2.0, 3.0], [0.1, 0.1]),
        ([1.0, float("nan")], [0.1, 0.1]),
        ([1.0, 1e9], [0.1, 0.1]),
        ([1.0, -1.0], [0.1, 0.1]),
        (3.0, [0.1, 0.1]),
    ],
)
def test_figures_that_were_not_asked_for_are_left_out(bits, nmse):
    record = MetricRecord({"trial-bits": bits, "trial-nmse": nmse})
    assert read_trials(RecordDict({RECORD: record}), ("int8", "int4")) == ()


GOOD = {"s": 1, "u": "int8", "a": 0, "o": 0, "c": 0, "f": True, "d": 1.0, "b": 0.5}


@given(decay=st.floats(0, 1), age=st.integers(1, 9), clip=st.floats(0.1, 9))
def test_control_comes_back_from_its_record(decay, age, clip):
    record = ConfigRecord(GOOD | {"d": decay, "m": age, "k": clip, "t": ["int8", "ecq(1)"]})
    control = Control.from_content(RecordDict({RECORD: record}))
    assert dict(control.to_record()) == dict(record)


@pytest.mark.parametrize(
    "wrong",
    [
        {"b": 1.5},
        {"b": float("nan")},
        {"d": -0.1},
        {"m": 0},
        {"m": "old"},
        {"k": 0.0},
        {"k": float("inf")},
        {"t": ["int8"] * (MAX_TRIALS + 1)},
        {"t": "int8"},
    ],
)
def test_a_control_record_that_cannot_be_is_refused(wrong):
    with pytest.raises(WireError):
        Control.from_content(RecordDict({RECORD: ConfigRecord(GOOD | wrong)}))
