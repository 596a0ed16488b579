"""What the controller expects of downloads, beside what the server's codec really sends."""

from dataclasses import replace

import numpy as np
import pytest

from fedsys.cli.run import run_experiment
from fedsys.config.load import parse_experiment
from fedsys.config.schema import CodecConfig
from fedsys.middleware.server import ServerCodec
from fedsys.rng import rng_for
from fedsys.telemetry.runfolder import RunFolder
from fedsys.wire.schema import Schema
from strategies._base import replay
from strategies._buffered import budget_for
from strategies._known import FIRST_OVERHEAD_BYTES, State
from strategies._offers import BY_SPEC, LADDER
from strategies._search import Choice, Cohort
from strategies._ways import Limits, Ways
from strategies.adaptive import Adaptive
from strategies.server_app import controller_for

N = 200_000


SETTINGS = """
run.seed = 1
run.budget.rounds = 8
task.name = "digits"
partition.clients = 12
cohort.size = 2
codec.uplink = "int8"
codec.downlink = "int4"
network.link = "wifi-weak"
"""


@pytest.mark.parametrize("strategy", ["fixed", "adaptive", "fedbuff"])
def test_runs_make_key_frames_and_record_them(tmp_path, strategy):
    down_bytes = {}
    for key_frames in (True, False):
        text = (
            SETTINGS + f'strategy.name = "{strategy}"\ncodec.key_frames = {str(key_frames).lower()}'
        )
        experiment = parse_experiment(text, where="test")
        folder = RunFolder.create(tmp_path / str(key_frames), experiment, resume=False)
        records = run_experiment(experiment, folder, workers=1).records
        down_bytes[key_frames] = sum(record.downlink_bytes for record in records)
        made = [record.round for record in records if record.key_frame]
        assert made[0] == 1
        assert (len(made) > 1) is key_frames
    if strategy == "fixed":
        assert down_bytes[True] < 0.8 * down_bytes[False]


def test_the_round_of_the_last_key_frame_and_sizes_of_differences_are_learned(tmp_path):
    """From a real run's records, as a resumed run does."""
    experiment = parse_experiment(SETTINGS + 'strategy.name = "adaptive"', where="test")
    folder = RunFolder.create(tmp_path / "run", experiment, resume=False)
    records = list(run_experiment(experiment, folder, workers=1).records)
    controller, examples = controller_for(experiment), dict.fromkeys(range(1, 13), 120)
    arrays = {"w": np.zeros(17_226, np.float32)}
    scene = budget_for(experiment, controller, examples, arrays)._scene
    state = replay(controller, scene, records)
    keys = [record.round for record in records if record.key_frame]
    assert state.key_round == keys[-1] > 1
    for (way, spec), size_bytes in state.sizes.items():
        if way == "down" and spec in BY_SPEC:  # a key frame over the versions missed is no size
            assert size_bytes > BY_SPEC[spec].size_bytes(17_226, 0)


def test_a_download_of_the_whole_model_says_nothing_of_the_size_of_differences(scene, world, node):
    """A tenth of it per version that was missed would be less than the overhead alone."""
    watched = world(Adaptive(choose_downlink=False), scene(40, cohort=4), node())
    watched.run(12)
    assert watched.plans[-1].downlink == "none"
    offers = [BY_SPEC[spec] for spec in ("ecq(0.1)", "int8")]
    sizes = [watched.state.size(watched.scene, "down", offer) for offer in offers]
    assert sizes == [offer.size_bytes(17_226, FIRST_OVERHEAD_BYTES) for offer in offers]


def test_a_key_frame_counts_for_what_it_drops_and_not_for_the_difference_it_replaces(scene):
    """With ten of a hundred both choices send the same whole model in int8."""
    many = scene(100, cohort=10, first_model="int8", key_frames=True)
    choices = [Choice(40, BY_SPEC["int8"], BY_SPEC[down]) for down in ("int4", "ecq(1)")]
    state = State(choice=choices[0])
    cohort = Cohort.of(state.estimates.of(range(1, 11)))
    ways = Ways(many, state, cohort, Limits((40,), LADDER, LADDER, None))
    assert ways.score(choices[0]) == ways.score(choices[1])
    few = Ways(replace(many, key_frames=False), state, cohort, ways.limits)
    assert few.score(choices[0]) != few.score(choices[1])


@pytest.mark.parametrize(
    ("cohort", "downlink", "makes_some"),
    [
        (2, "int4", True),
        (4, "int4", True),
        (4, "int8", True),
        (2, "ecq(1)", True),
        (10, "ecq(0.25)", False),
        (20, "int4", False),
    ],
)
def test_downloads_are_foretold_and_when_they_are_key_frames(
    scene, monkeypatch, cohort, downlink, makes_some
):
    monkeypatch.setattr("strategies._known.FIRST_OVERHEAD_BYTES", 0.0)  # of Flower's, not sent here
    models = [rng_for(0).standard_normal(N).astype(np.float32)]
    schema = Schema.of({"w": models[0]})
    server = ServerCodec(schema, CodecConfig(downlink=downlink), 1, holds=True)
    size = {"parameters": N, "model_bytes": 4 * N}
    here = scene(20, cohort=cohort, first_model="int8", key_frames=True, **size)
    one = BY_SPEC[downlink].size_bytes(N, 0)
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
            assert foretold == pytest.approx(sent, rel=0.03)
        answered = answered | dict.fromkeys(asked, round_number)
        for node in asked:
            server.seen(node, round_number)
        if server.downlink.key == round_number:
            key_round = round_number
            keys.append(round_number)
    assert keys[0] == 1
    assert (len(keys) > 1) is makes_some
