"""The mean over rounds that is evaluated and saved, beside the models that clients train."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedsys.cli.run import run_experiment
from fedsys.config.load import parse_experiment
from fedsys.telemetry.runfolder import RunFolder
from fedsys.wire.schema import Schema
from strategies._aggregate import Averaged
from strategies._flower import RoundBudget
from strategies.adaptive import Adaptive
from tests.strategies._federation import (
    START,
    Federation,
    restored_every_round,
    simulated_alike,
)

SECONDS = {1: 1.0, 2: 1.0}
PARTIAL = """
run.seed = 3
run.budget.rounds = 6
task.name = "digits"
partition.clients = 12
partition.kind = "dirichlet"
cohort.fraction = 0.25
strategy.name = "adaptive"
network.link = "wifi-weak"
"""


@dataclass(frozen=True)
class Weighted:
    """One local step of everybody; the mean takes each round's model with its weight."""

    weights: tuple[float, ...]
    chooses_codecs: ClassVar[bool] = False
    fednova: ClassVar[bool] = False

    def start(self, scene):
        return None

    def plan(self, scene, state, round_number):
        nodes = dict.fromkeys(scene.sample(round_number), 1)
        weight = self.weights[round_number - 1]
        return scene.plan(round_number, nodes, reason="test", mean_weight=weight)

    def observe(self, scene, state, record):
        return None


def federation(tmp_path, *weights):
    return Federation(
        tmp_path,
        {},
        f"run.budget.rounds={len(weights)}",
        seconds=SECONDS,
        controller=Weighted(weights),
        moves=lambda node, number: float(number),
    )


def test_equal_weights_give_the_mean_of_all_models_and_clients_train_the_last(tmp_path):
    one = federation(tmp_path, 1, 1 / 2, 1 / 3, 1 / 4)
    strategy = one.strategy()
    seen = [strategy.arrays()["w"] for _ in strategy.rounds(one.grid())]
    # In round r every client adds r.
    models = [START["w"] + np.float32(moved) for moved in (1, 3, 6, 10)]
    np.testing.assert_allclose(seen, models, rtol=1e-6)
    np.testing.assert_allclose(strategy.result()["w"], np.mean(models, axis=0), rtol=1e-6)
    assert strategy.result()["seen"] == strategy.arrays()["seen"]


def test_the_mean_is_what_is_evaluated_and_returned(tmp_path):
    one, seen = federation(tmp_path, 1, 0.5), []

    def evaluate(arrays):
        seen.append(arrays["w"] - START["w"])
        return 0.0, 0.0

    examples = {node: 10 * node for node in one.nodes}
    strategy = RoundBudget(one.experiment, one.controller, examples, START, evaluate)
    result = strategy.start(one.grid())
    np.testing.assert_allclose(seen, np.outer([1, 2], np.ones(4)), rtol=1e-6)
    moved = result.arrays["w"].numpy() - START["w"]
    np.testing.assert_allclose(moved, np.full(4, 2), rtol=1e-6)


def test_the_mean_is_what_is_saved(tmp_path):
    experiment = parse_experiment(PARTIAL, where="test")
    folder = RunFolder.create(tmp_path / "run", experiment, resume=False)
    run_experiment(experiment, folder, workers=1)
    tensors = folder.load_checkpoint().tensors
    saved = load_file(folder.path / "model.safetensors")
    flat = np.concatenate([array.reshape(-1) for _, array in sorted(saved.items())])
    for name, is_saved in (("mean-flat", True), ("flat", False)):
        assert np.array_equal(np.sort(flat), np.sort(tensors[name])) is is_saved


@pytest.mark.parametrize("weight", [0.0, -0.5, 1.5])
def test_a_weight_that_is_none_is_refused(tmp_path, weight):
    one = federation(tmp_path, weight)
    with pytest.raises(ValueError, match=r"must be in \(0, 1\]"):
        list(one.strategy().rounds(one.grid()))


def test_halves_that_are_far_apart_have_a_mean():
    models = [
        {"w": np.zeros(1, np.float32), "bn.running_var": np.array([v], np.float16)}
        for v in (6e4, -6e4)
    ]
    schema = Schema.of(models[0])
    mean = Averaged(*schema.split(models[0])).moved(schema, *schema.split(models[1]), 0.5)
    assert schema.join(mean.flat, mean.raw)["bn.running_var"].tolist() == [0]


def test_a_weight_of_one_begins_the_mean_anew(tmp_path):
    one = federation(tmp_path, 0.5, 1, 0.25)
    strategy = one.strategy()
    results = [strategy.result()["w"] - START["w"] for _ in strategy.rounds(one.grid())]
    expected = [0.5 * 1, 3, 0.75 * 3 + 0.25 * 6]
    np.testing.assert_allclose(results, np.outer(expected, np.ones(4)), rtol=1e-6)


def test_a_run_restored_after_any_round_has_the_same_mean(tmp_path):
    weights = (1, 0.5, 0.5, 1, 0.3, 0.2)
    whole = federation(tmp_path / "whole", *weights)
    unbroken = whole.strategy()
    expected = list(unbroken.rounds(whole.grid()))
    strategy, records = restored_every_round(federation(tmp_path / "broken", *weights))
    assert records == expected
    for name in START:
        assert strategy.result()[name].tobytes() == unbroken.result()[name].tobytes()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_tensors_that_travel_raw_are_averaged_in_their_own_dtype(dtype):
    before, after = (
        {
            "w": np.full(3, value, np.float32),
            "bn.running_mean": np.array([value], dtype),
            "bn.num_batches_tracked": np.array(value, np.int64),
        }
        for value in (1, 5)
    )
    schema = Schema.of(before)
    assert not all(schema.coded)
    mean = Averaged(*schema.split(before)).moved(schema, *schema.split(after), 0.25)
    found = schema.join(mean.flat, mean.raw)
    assert found["w"].tolist() == [2, 2, 2]
    assert found["bn.running_mean"].dtype == dtype
    assert found["bn.running_mean"].astype(float).tolist() == [2]
    assert found["bn.num_batches_tracked"] == 5


def test_where_everybody_takes_part_the_model_itself_is_evaluated(world, scene, node):
    watched = world(Adaptive(), scene(6), node())
    watched.run(6)
    assert {plan.mean_weight for plan in watched.plans} == {1.0}


def test_the_fewer_take_part_the_more_rounds_are_averaged(world, scene, node):
    weights = []
    for cohort in (20, 10, 5, 2):
        watched = world(Adaptive(), scene(20, cohort=cohort), node())
        watched.run(20)
        weights.append(watched.plans[-1].mean_weight)
        assert watched.plans[0].mean_weight == 1  # there is nothing before
    assert weights[0] == 1
    assert weights == sorted(weights, reverse=True)
    assert weights[-1] < 0.5
    off = world(Adaptive(average=False), scene(20, cohort=2), node())
    assert off.run(20).mean_weight == 1


def test_the_weights_are_those_of_polynomial_decay(scene):
    """Shamir & Zhang (2013): (eta + 1) / (t + eta), here with eta = 8 / noise."""
    few = scene(10, cohort=5)
    controller = Adaptive()
    state = controller.start(few)
    noise = state.progress.disagreement / 5 * (1 - 5 / 10)
    eta = 8 / noise
    for t in (1, 2, 9):
        weight = controller.plan(few, state, t).mean_weight
        assert weight == pytest.approx((eta + 1) / (t + eta))


def test_a_simulation_with_a_mean_is_the_same_on_any_number_of_workers(tmp_path):
    simulated_alike(tmp_path, PARTIAL)
