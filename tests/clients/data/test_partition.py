"""Every example has exactly one owner, nobody is left short, and the seed decides."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.data.partition import partition
from fedsys.config.schema import Partition
from fedsys.errors import ConfigError

LABELS = np.repeat(np.arange(10), 200)


def counts_per_label(parts, labels):
    return np.array([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


@given(
    kind=st.sampled_from(["iid", "dirichlet", "shards"]),
    clients=st.integers(1, 12),
    min_examples=st.integers(1, 5),
    extra=st.integers(0, 200),
    alpha=st.floats(0.001, 100),
    shards_per_client=st.integers(1, 4),
    classes=st.integers(1, 10),
    seed=st.integers(0, 2**63 - 1),
)
def test_every_example_has_one_owner_and_no_client_is_short(
    kind, clients, min_examples, extra, alpha, shards_per_client, classes, seed
):
    n = clients * min_examples + extra
    labels = np.arange(n) % classes
    config = Partition(
        clients=clients,
        kind=kind,
        alpha=alpha,
        shards_per_client=min(shards_per_client, n),
        min_examples=min_examples,
    )

    parts = partition(n, labels, None, config, seed)

    assert len(parts) == clients
    assert min(map(len, parts)) >= min_examples
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(n))


def test_same_seed_same_split_and_another_seed_another():
    first, again, other = (partition(2000, LABELS, None, Partition(), seed) for seed in (1, 1, 2))

    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_iid_clients_differ_by_at_most_one_example():
    parts = partition(2000, None, None, Partition(clients=7, kind="iid"), 3)

    assert {len(part) for part in parts} == {285, 286}


def test_a_client_of_two_shards_sees_two_labels():
    # 20 labels' worth of whole shards: 2000 / (10 * 2) = 100 examples, half of a label.
    config = Partition(clients=10, kind="shards", shards_per_client=2)

    table = counts_per_label(partition(2000, LABELS, None, config, 4), LABELS)

    assert set(np.count_nonzero(table, axis=1)) <= {1, 2}
    assert set(table[table > 0]) <= {100, 200}


def test_dirichlet_alpha_moves_from_one_label_a_client_to_all_alike():
    def share_of_commonest_label(alpha):
        config = Partition(clients=10, alpha=alpha)
        table = counts_per_label(partition(2000, LABELS, None, config, 5), LABELS)
        return (table.max(axis=1) / table.sum(axis=1)).mean()

    assert share_of_commonest_label(1e4) == pytest.approx(0.1, abs=0.02)
    assert share_of_commonest_label(0.3) > 0.3
    assert share_of_commonest_label(0.01) > 0.6


def test_dirichlet_shares_have_the_variance_of_the_law():
    # Var of a symmetric Dirichlet share over k clients is (k - 1) / (k^2 (k alpha + 1)).
    k, alpha, per_label = 5, 0.5, 400
    labels = np.repeat(np.arange(500), per_label)

    parts = partition(len(labels), labels, None, Partition(clients=k, alpha=alpha), 6)

    shares = counts_per_label(parts, labels) / per_label
    assert shares.mean() == pytest.approx(1 / k)
    assert shares.var() == pytest.approx((k - 1) / (k**2 * (k * alpha + 1)), rel=0.1)


def test_extreme_skew_with_many_clients_is_filled_up_without_redrawing():
    config = Partition(clients=100, alpha=0.01, min_examples=10)

    parts = partition(2000, LABELS, None, config, 7)

    assert min(map(len, parts)) == 10


def test_too_few_examples_is_an_error_that_proposes_values():
    for clients, least, proposal in [
        (15, 5, "clients <= 10 or min_examples <= 3"),
        (60, 5, "clients <= 10"),
        (2, 60, "min_examples <= 25"),
        (60, 60, "both lower"),
    ]:
        with pytest.raises(ConfigError, match=f"set {proposal}$"):
            partition(
                50, np.zeros(50, int), None, Partition(clients=clients, min_examples=least), 1
            )


@given(users=st.lists(st.integers(0, 9), min_size=10, max_size=200), seed=st.integers(0, 99))
def test_a_user_is_never_divided(users, seed):
    users = np.array([*range(10), *users])

    parts = partition(
        len(users), None, users, Partition(clients=4, kind="user", min_examples=1), seed
    )

    owners = [{client for client, p in enumerate(parts) if u in users[p]} for u in range(10)]
    assert all(len(owner) == 1 for owner in owners)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(len(users)))


def test_more_clients_than_users_is_an_error_that_proposes_a_number():
    with pytest.raises(ConfigError, match="the data has 3 users; set clients <= 3"):
        partition(60, None, np.arange(60) % 3, Partition(clients=4, kind="user"), 1)


def test_a_user_with_too_few_examples_is_an_error_rather_than_a_mixed_client():
    users = np.array([0] * 30 + [1])

    with pytest.raises(ConfigError, match="set min_examples <= 1 or fewer clients than 2"):
        partition(31, None, users, Partition(clients=2, kind="user", min_examples=5), 1)


def test_more_shards_for_each_client_than_examples_is_an_error_before_they_are_made():
    config = Partition(clients=4, kind="shards", shards_per_client=2**31 - 1)
    with pytest.raises(ConfigError, match="the data has 2000 examples; set shards_per_client <= 2"):
        partition(2000, LABELS, None, config, 1)


@pytest.mark.parametrize("kind", ["dirichlet", "shards"])
def test_data_without_classes_cannot_be_split_by_class(kind):
    with pytest.raises(ConfigError, match="choose from iid, user"):
        partition(100, None, None, Partition(clients=2, kind=kind), 1)


def test_data_without_users_cannot_be_split_by_user():
    with pytest.raises(ConfigError, match="does not say"):
        partition(100, None, None, Partition(clients=2, kind="user"), 1)
