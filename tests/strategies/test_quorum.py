"""A round that closes at a quorum, and updates that come in a later one."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from fedsys.errors import ConfigError
from fedsys.middleware.store import ClientStore
from fedsys.types import Quorum
from tests.strategies._federation import (
    START,
    Federation,
    restored_every_round,
    simulated_alike,
    told,
)

GOES_ON = "at work when the round closed"
SECONDS = {1: 1.0, 2: 1.0, 3: 1.1, 4: 3.0}


@dataclass(frozen=True)
class Closed:
    """One local step of everybody, and a quorum."""

    quorum: Quorum
    uplink: str | None = None
    chooses_codecs: ClassVar[bool] = False
    fednova: ClassVar[bool] = False

    def start(self, scene):
        return None

    def plan(self, scene, state, round_number):
        nodes = dict.fromkeys(scene.sample(round_number), 1)
        return scene.plan(
            round_number, nodes, reason="test", quorum=self.quorum, deadline_s=scene.deadline_s
        )

    def observe(self, scene, state, record):
        return None


def federation(tmp_path, quorum, *settings, seconds=SECONDS, rounds=3):
    return Federation(
        tmp_path,
        {},
        f"run.budget.rounds={rounds}",
        *settings,
        seconds=seconds,
        controller=Closed(Quorum(*quorum)),
    )


def test_a_late_update_is_used_when_it_comes_and_counts_by_its_age(tmp_path):
    one = federation(tmp_path, (0.5, 1, 1.2, 8))
    strategy, grid = one.strategy(), one.grid()
    records = list(strategy.rounds(grid))
    # Two of four are there at 1.0 s: the round ends at 1.2 s. In the second all three that are
    # free answer, the last 1.1 s after they were asked; in the third client 4 is there at 3.0 s.
    assert [record.end_s for record in records] == pytest.approx([1.2, 2.3, 3.4])
    assert told(records[0]) == [(1, 0, ""), (2, 0, ""), (3, 0, ""), (4, 0, GOES_ON)]
    assert [client.node_id for client in records[1].plan.clients] == [1, 2, 3]
    assert told(records[2]) == [(1, 0, ""), (2, 0, ""), (3, 0, ""), (4, 2, "")]
    assert records[2].reports[3].arrival_s == pytest.approx(3.0)
    # Client i adds i and has 10 i examples; the one of two steps ago counts 1 / sqrt(3) of it.
    own, share = (1 + 4 + 9) / 6, 3**-0.5
    with_late = (1 + 4 + 9 + 16 * share) / (6 + 4 * share)
    expected = START["w"] + 2 * own + with_late
    np.testing.assert_allclose(strategy.arrays()["w"], expected, rtol=1e-6)
    assert grid.pushed.count(4) == 1


def test_the_next_request_tells_the_client_that_its_late_update_was_used(tmp_path):
    one = federation(tmp_path, (0.5, 1, 1.2, 8), "codec.uplink=topk(0.5)", rounds=4)
    records = list(one.strategy().rounds(one.grid()))
    assert [report.node_id for report in records[3].reports] == [1, 2, 3, 4]
    # Its first update was used, so that its second begins with what top-k left of that: 2 of 4.
    state = ClientStore(tmp_path / "run-1", shared=True).load(4)
    assert np.count_nonzero(state.residual) == 2
    assert float(np.abs(state.residual).max()) == pytest.approx(4.0)


def test_who_is_later_than_allowed_is_left_out_and_brings_it_with_the_next(tmp_path):
    one = federation(
        tmp_path,
        (0.5, 1, 1.0, 2),
        "codec.uplink=topk(0.5)",
        seconds={1: 1.0, 2: 4.5},
        rounds=6,
    )
    records = list(one.strategy().rounds(one.grid()))
    assert told(records[4]) == [(1, 0, ""), (2, 4, "more than 2 rounds late")]
    asked = [[client.node_id for client in record.plan.clients] for record in records]
    assert asked == [[1, 2], [1], [1], [1], [1], [1, 2]]
    # Its second update, asked for after that, begins with all of the first: twice four values.
    state = ClientStore(tmp_path / "run-1", shared=True).load(2)
    np.testing.assert_array_equal(state.residual, np.full(4, 2, np.float32))


@pytest.mark.parametrize(("least", "end_s"), [(1, 1.0), (2, 10.0)])
def test_a_round_waits_for_the_least_number_of_replies(least, end_s, tmp_path):
    seconds = {1: 1.0, 2: 10.0, 3: 10.0, 4: 20.0}
    one = federation(tmp_path, (0.25, least, 1.0, 8), seconds=seconds, rounds=1)
    (record,) = one.strategy().rounds(one.grid())
    assert record.end_s == pytest.approx(end_s)


def test_where_everybody_is_at_work_the_round_waits_for_the_first_of_them(tmp_path):
    one = federation(
        tmp_path, (0.5, 1, 1.0, 8), "cohort.deadline_s=0.6", seconds={1: 3.0, 2: 1.0}, rounds=2
    )
    first, second = one.strategy().rounds(one.grid())
    assert told(first) == [(1, 0, GOES_ON), (2, 0, GOES_ON)]
    assert (second.plan.clients, told(second)) == ((), [(2, 1, "")])
    assert (first.end_s, second.end_s) == (pytest.approx(0.6), pytest.approx(1.0))


def test_a_late_reply_that_is_no_good_frees_its_client(tmp_path):
    one = federation(tmp_path, (0.5, 1, 1.2, 8), rounds=4)
    one.faults[4, 1] = "damaged"
    records = list(one.strategy().rounds(one.grid()))
    assert told(records[2])[3] == (
        4,
        2,
        "refused: packet: the checksum is wrong, bytes were damaged on the way",
    )
    assert 4 in [client.node_id for client in records[3].plan.clients]


def test_clients_that_fail_at_once_do_not_close_the_round(tmp_path):
    one = federation(tmp_path, (0.5, 1, 1.2, 8), rounds=1)
    one.faults.update({1: "raises", 4: "raises"})
    (record,) = one.strategy().rounds(one.grid())
    assert [report.accepted for report in record.reports] == [False, True, True, False]
    assert record.end_s == pytest.approx(1.1)


@pytest.mark.parametrize("codec", ["none", "topk(0.5)|int8"])
def test_a_run_restored_after_any_round_goes_on_with_those_at_work(codec, tmp_path):
    settings = ("codec.downlink=int8", f"codec.uplink={codec}")
    seconds = {**SECONDS, 5: 2.5, 6: 40.0}

    def begun(name):
        return federation(tmp_path / name, (0.5, 2, 1.1, 5), *settings, seconds=seconds, rounds=9)

    whole = begun("whole")
    unbroken = whole.strategy()
    expected = list(unbroken.rounds(whole.grid()))
    assert sum(bool(r.staleness and r.accepted) for x in expected for r in x.reports) > 2

    strategy, records = restored_every_round(begun("broken"))
    assert records == expected
    for name in START:
        assert strategy.arrays()[name].tobytes() == unbroken.arrays()[name].tobytes()


@pytest.mark.parametrize("lacks", ["reply.0", "flight"])
def test_a_checkpoint_that_lacks_who_is_at_work_is_refused(lacks, tmp_path):
    one = federation(tmp_path, (0.5, 1, 1.2, 8))
    strategy = one.strategy()
    next(strategy.rounds(one.grid()))
    tensors = {name: value for name, value in strategy.tensors().items() if name != lacks}
    state = {name: value for name, value in strategy.state().items() if name != lacks}
    with pytest.raises(ConfigError, match=f"not one of this experiment: '{lacks}'"):
        one.strategy().restore(tensors, state, [])


TEXT = """
run = { name = "late", budget = { rounds = 6 } }
task = { options = { model = "mlp" } }
partition = { clients = 6 }
strategy = { name = "adaptive" }

[network]
link = "markov"
options = { up_bps = 2e6, down_bps = 2e6, mean_good_s = 3.0, mean_bad_s = 2.0 }
"""


def test_in_a_simulation_two_workers_give_the_bytes_of_one(tmp_path):
    result = simulated_alike(tmp_path, TEXT)
    assert any(r.staleness and r.accepted for x in result.records for r in x.reports)
