"""The device is what torch has, and its absence is said once."""

import logging

import pytest
import torch

from clients.device import choose_device
from fedsys.errors import ConfigError

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def test_cpu_is_taken_at_its_word():
    assert choose_device("cpu").type == "cpu"


@without_gpu
def test_auto_falls_back_with_one_line(caplog):
    choose_device.cache_clear()
    with caplog.at_level(logging.INFO):
        assert choose_device("auto").type == choose_device("auto").type == "cpu"

    assert [record.message for record in caplog.records] == [
        "training.device = auto: torch finds no CUDA device, training on the CPU"
    ]


@without_gpu
def test_asking_for_a_gpu_that_is_not_there_is_an_error():
    with pytest.raises(ConfigError, match="set 'auto' or 'cpu'"):
        choose_device("cuda")
