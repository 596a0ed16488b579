"""Examples come in order, wherever they go."""

import numpy as np
import pytest
import torch

from clients.data.federated import FederatedData
from clients.data.feed import examples_of
from clients.tasks._base import Examples
from fedsys.errors import ConfigError


def federation():
    x = torch.arange(24.0).reshape(12, 2)
    parts = [np.array([0, 5]), np.array([1, 2, 3]), np.array([4])]
    return FederatedData(None, Examples(x, torch.arange(12)), parts)


def taken(device, prefetch, clients=(2, 0, 0, 1)):
    batches = examples_of(federation(), clients, torch.device(device), prefetch=prefetch)
    return [(x.cpu().tolist(), y.cpu().tolist()) for x, y in batches]


EXPECTED = [
    ([[8, 9]], [4]),
    *[([[0, 1], [10, 11]], [0, 5])] * 2,
    ([[2, 3], [4, 5], [6, 7]], [1, 2, 3]),
]


@pytest.mark.parametrize("prefetch", [True, False])
def test_each_client_gets_its_own(prefetch):
    assert taken("cpu", prefetch) == EXPECTED
    assert taken("cpu", prefetch, ()) == []


def test_a_client_outside_the_partition_is_named():
    with pytest.raises(ConfigError, match="no client 3"):
        taken("cpu", False, (0, 3))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("prefetch", [True, False])
def test_on_a_gpu_too(prefetch):
    assert taken("cuda", prefetch) == EXPECTED
    assert taken("cuda", prefetch, ()) == []
