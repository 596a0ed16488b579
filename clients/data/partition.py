"""Who gets which training examples: the partition, drawn from the seed.

Every example goes to exactly one client and no client gets fewer than ``min_examples``. Kinds:
``iid``; ``dirichlet`` (each label is spread by a draw from a symmetric Dirichlet; Hsu et al.
2019); ``shards`` (label-sorted slices; McMahan et al. 2017); ``user`` (whole users).
"""

from collections.abc import Sequence
from typing import overload

import numpy as np

from fedsys.config.schema import Partition
from fedsys.errors import ConfigError
from fedsys.rng import rng_for
from fedsys.types import I64


class Parts(Sequence[I64]):
    """Ascending example indices int64 [k] of each client, in two arrays for all clients."""

    def __init__(self, order: I64, ends: I64) -> None:
        """``order`` int64 [n] are the parts end to end, ``ends`` int64 [clients] where they end."""
        self.order = order
        self._ends = ends

    @property
    def sizes(self) -> I64:
        """Number of examples of each client, int64 [clients]."""
        return np.diff(self._ends, prepend=0)

    def __len__(self) -> int:
        """Number of clients."""
        return len(self._ends)

    @overload
    def __getitem__(self, client: int) -> I64: ...

    @overload
    def __getitem__(self, client: slice) -> list[I64]: ...

    def __getitem__(self, client: int | slice) -> I64 | list[I64]:
        """The indices of one client, a view; or those of several."""
        if isinstance(client, slice):
            return [self[one] for one in range(*client.indices(len(self)))]
        if not -len(self) <= client < len(self):
            raise IndexError(f"client {client} of {len(self)}")
        client %= len(self)
        return self.order[self._ends[client - 1] if client else 0 : self._ends[client]]


def partition(n: int, labels: I64 | None, users: I64 | None, config: Partition, seed: int) -> Parts:
    """Which examples each client has, together a permutation of 0..n-1.

    ``labels`` and ``users`` int64 [n] are needed by the kinds that look at them. A client that
    the draw left short is filled up from the largest, except with kind = "user", where moving an
    example would mix users. ConfigError, with values that would do, when it cannot be done.
    """
    if n < config.clients * config.min_examples:
        fewer = [
            f"{name} <= {n // other}"
            for name, other in (("clients", config.min_examples), ("min_examples", config.clients))
            if other <= n
        ]
        raise ConfigError(
            f"partition: {n} examples are too few for {config.clients} clients of at least "
            f"{config.min_examples}; set {' or '.join(fewer) or 'both lower'}"
        )
    rng = rng_for(seed, "partition")
    if config.kind == "user":
        owner = _whole_users(users, config, rng)
    else:
        owner = _drawn(n, labels, config, rng)
        _fill(owner, config, rng)
    counts = np.bincount(owner, minlength=config.clients)
    return Parts(np.argsort(owner, kind="stable"), np.cumsum(counts))


def _drawn(n: int, labels: I64 | None, config: Partition, rng: np.random.Generator) -> I64:
    if config.kind == "iid":
        return rng.permutation(n) % config.clients
    if labels is None:
        raise ConfigError(
            f"partition.kind: '{config.kind}' needs one class per example, which this task's data "
            "has not; choose from iid, user"
        )
    if config.kind == "dirichlet":
        return _dirichlet(labels, config, rng)
    if config.shards_per_client > n:
        raise ConfigError(
            f"partition.shards_per_client: {config.shards_per_client} shards for each client but "
            f"the data has {n} examples; set shards_per_client <= {n}"
        )
    return _shards(labels, config, rng)


def _dirichlet(labels: I64, config: Partition, rng: np.random.Generator) -> I64:
    owner = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(config.clients, config.alpha))
        ends = np.round(np.cumsum(shares) * len(members))
        owner[members] = np.searchsorted(ends, np.arange(len(members)), side="right")
    # Rounding of the cumulative sum may leave the last member just past the last end.
    return np.minimum(owner, config.clients - 1)


def _shards(labels: I64, config: Partition, rng: np.random.Generator) -> I64:
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    count = config.clients * config.shards_per_client
    holder = rng.permutation(count) % config.clients
    owner = np.empty(len(labels), np.int64)
    sizes = np.full(count, len(order) // count)
    sizes[: len(order) % count] += 1
    owner[order] = np.repeat(holder, sizes)
    return owner


def _whole_users(users: I64 | None, config: Partition, rng: np.random.Generator) -> I64:
    if users is None:
        raise ConfigError(
            "partition.kind: 'user' needs to know whose each example is, which this task's data "
            "does not say; choose from iid, dirichlet, shards"
        )
    names, member, sizes = np.unique(users, return_inverse=True, return_counts=True)
    if len(names) < config.clients:
        raise ConfigError(
            f"partition.clients: {config.clients} clients but the data has {len(names)} users; "
            f"set clients <= {len(names)}"
        )
    held = np.zeros(config.clients, np.int64)
    client_of = np.empty(len(names), np.int64)
    for user in rng.permutation(len(names)):
        client_of[user] = np.argmin(held)
        held[client_of[user]] += sizes[user]
    if held.min() < config.min_examples:
        raise ConfigError(
            f"partition.min_examples: a client has only {held.min()} examples of its users; set "
            f"min_examples <= {held.min()} or fewer clients than {config.clients}"
        )
    return client_of[member]


def _fill(owner: I64, config: Partition, rng: np.random.Generator) -> None:
    """Give short clients random examples of the largest ones, in place."""
    counts = np.bincount(owner, minlength=config.clients)
    for client in np.flatnonzero(counts < config.min_examples):
        while counts[client] < config.min_examples:
            largest = int(np.argmax(counts))
            # The mean is at least min_examples, so the largest has some to spare.
            spare = counts[largest] - config.min_examples
            moved = min(config.min_examples - counts[client], spare)
            owner[rng.choice(np.flatnonzero(owner == largest), moved, replace=False)] = client
            counts[client] += moved
            counts[largest] -= moved
