"""FedProx: slow clients do what there is time for, and mu follows the loss if it is told to."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsys.errors import ConfigError
from strategies.fedprox import FedProx


def test_every_client_is_told_mu(world, scene):
    plan = world(FedProx(mu=0.3), scene(2)).run(2)
    assert [client.proximal_mu for client in plan.clients] == [0.3, 0.3]


def test_until_a_pace_is_known_all_do_their_whole_work(world, scene):
    plan = world(FedProx(local_epochs=2), scene(3, deadline_s=0.5)).run(1)
    assert [client.local_steps for client in plan.clients] == [20, 20, 20]


def test_partial_work_by_hand(world, scene, node):
    # Downloads and uploads of 70,904 bytes take 0.1 + 0.567 s and 0.1 + 0.284 s: 1.051 s. Until a
    # deadline of 2 s, 0.949 s are left: 9 steps of 0.1 s, and all 10 of 0.01 s.
    def speeds(node_id):
        return node(step_s=0.1 if node_id == 1 else 0.01)

    watched = world(FedProx(), scene(2, deadline_s=2.0), speeds)
    plan = watched.run(2)
    assert [client.local_steps for client in plan.clients] == [9, 10]
    assert plan.clients[0].reason == "9 of 10 in 2.0 s"
    assert plan.clients[1].reason == ""


def test_without_a_deadline_the_clock_is_that_of_most_clients(world, scene, node):
    def speeds(node_id):
        return node(step_s=0.5 if node_id == 1 else 0.05)

    plan = world(FedProx(), scene(11), speeds).run(3)
    slow, *others = (client.local_steps for client in plan.clients)
    assert set(others) == {10}
    assert slow == 1


@settings(max_examples=20)
@given(
    slowness=st.lists(st.floats(0.001, 10), min_size=1, max_size=8),
    deadline_s=st.one_of(st.none(), st.floats(0.1, 100)),
    epochs=st.integers(1, 4),
)
def test_work_is_between_one_step_and_all_of_it(world, scene, node, slowness, deadline_s, epochs):
    watched = world(
        FedProx(local_epochs=epochs),
        scene(len(slowness), deadline_s=deadline_s),
        lambda n: node(step_s=slowness[n - 1]),
    )
    for client in watched.run(3).clients:
        assert 1 <= client.local_steps <= 10 * epochs


def test_mu_rises_with_a_rising_loss_and_falls_after_five_falls(world, scene):
    losses = [2.0, 2.5, 2.4, 2.3, 2.2, 2.1, 2.0, 1.9, 1.8]
    watched = world(FedProx(mu=0.1, adapt_mu=True), scene(2), loss=lambda r: losses[r - 1])
    watched.run(8)
    mus = [plan.clients[0].proximal_mu for plan in watched.plans]
    # Round 2 begins with a higher loss: 0.2 from round 3. Rounds 3 to 7 are five falls: 0.1 again.
    assert mus == [0.1, 0.1, 0.2, 0.2, 0.2, 0.2, 0.2, 0.1]


def test_mu_stays_unless_it_is_to_adapt_and_is_never_negative(world, scene):
    plain = world(FedProx(mu=0.1), scene(2), loss=lambda r: float(r))
    assert plain.run(9).clients[0].proximal_mu == 0.1
    falling = world(FedProx(mu=0.0, adapt_mu=True), scene(2))
    assert falling.run(14).clients[0].proximal_mu == 0.0


@pytest.mark.parametrize("options", [{"mu": -0.1}, {"local_epochs": 0}])
def test_impossible_options_are_refused(options):
    (name,) = options
    with pytest.raises(ConfigError, match=name):
        FedProx(**options)
