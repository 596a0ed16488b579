"""Counts of very many nodes behave as a dict of them, in a small part of its memory."""

import sys

import numpy as np
import pytest

from fedsys.nodes import NodeCounts


def test_it_reads_as_the_dict_would():
    counts = NodeCounts(range(1, 4), np.array([5, 0, 7]))
    assert dict(counts) == {1: 5, 2: 0, 3: 7} == counts
    assert (len(counts), counts[3], counts.get(4)) == (3, 7, None)
    assert type(counts[1]) is int
    assert 0 not in counts
    with pytest.raises(KeyError):
        counts[0]


def test_every_node_has_a_count():
    with pytest.raises(ValueError, match="3 nodes but 2 counts"):
        NodeCounts(range(3), np.array([1, 2]))


def test_a_million_nodes_take_the_memory_of_their_counts():
    counts = NodeCounts(range(1, 10**6 + 1), np.zeros(10**6, np.int64))
    assert sum(map(sys.getsizeof, vars(counts).values())) < 8.1e6
