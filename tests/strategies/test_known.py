"""What the controller expects of downloads, beside what the server's codec really sends."""

import numpy as np
import pytest

from fedsys.config.schema import CodecConfig
from fedsys.middleware.server import ServerCodec
from fedsys.rng import rng_for
from fedsys.wire.schema import Schema
from strategies._known import State

N = 200_000


@pytest.mark.parametrize(("cohort", "downlink"), [(2, "int4"), (4, "int4"), (20, "int4")])
def test_downloads_are_foretold_and_when_they_are_key_frames(scene, monkeypatch, cohort, downlink):
    monkeypatch.setattr("strategies._known.FIRST_OVERHEAD_BYTES", 0.0)  # of Flower's, not sent here
    models = [rng_for(0).standard_normal(N).astype(np.float32)]
    schema = Schema.of({"w": models[0]})
    server = ServerCodec(schema, CodecConfig(downlink=downlink), 1, holds=True)
    size = {"parameters": N, "model_bytes": 4 * N}
    here = scene(20, cohort=cohort, first_model="int8", key_frames=True, **size)
    one = N * 4.06 / 8
    answered, key_round, keys = {}, 1, []
    for round_number in range(1, 16):
        asked = here.sample(round_number)
        state = State(answered=answered, key_round=key_round)
        foretold = state.behind_bytes(here, asked, round_number, one)
        step = rng_for(round_number).standard_normal(N).astype(np.float32)
        models.append(models[-1] + np.float32(0.01) * step)
        server.advance({"w": models[-1]}, downlink, asked)
        sent = [len(server.payload_for(node)) for node in asked]
        if round_number > 1:
            assert foretold == pytest.approx(sent, rel=0.02)
        answered = answered | dict.fromkeys(asked, round_number)
        for node in asked:
            server.seen(node, round_number)
        if server.sends_key_frame:
            key_round = round_number
            keys.append(round_number)
    assert keys[0] == 1
    assert (len(keys) == 1) == (cohort == 20)
