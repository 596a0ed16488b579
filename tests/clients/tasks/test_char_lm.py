"""A text becomes windows, contiguous users, and a model that learns it."""

import numpy as np
import pytest
import torch

from clients.data.loader import local_steps
from clients.evaluate import evaluate
from clients.tasks.char_lm import CharLm
from clients.train import train
from clients.weights import build_model
from fedsys.config.schema import Training
from fedsys.errors import ConfigError

TEXT = "abcdefgh" * 200


@pytest.fixture
def task(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    return CharLm(path=str(tmp_path / "text.txt"), length=10, users=4, hidden=16)


def test_targets_are_the_characters_that_follow(task):
    data = task.train_data()

    flat_x, flat_y = data.x.flatten(), data.y.flatten()
    assert torch.equal(flat_x[1:], flat_y[:-1])
    assert "".join("abcdefgh"[c] for c in data.x[0]) == "abcdefghab"
    assert (len(data), len(task.test_data())) == (143, 16)


def test_a_user_is_a_contiguous_part(task):
    user = task.train_data().user

    assert (np.diff(user) >= 0).all()
    assert set(np.bincount(user)) <= {35, 36}


def test_it_learns_a_text_that_repeats_itself(task):
    data, model = task.train_data(), build_model(task, 1)
    steps = local_steps(len(data), 16, 1, 60, np.random.default_rng(1))

    train(model, task, data.x, data.y, steps, Training(optimizer="adamw"), lr=0.03)

    test = task.test_data()
    _, accuracy, count = evaluate(model, task, test.x, test.y)
    assert accuracy > 0.9
    assert count == 160


def test_a_missing_or_too_short_text_is_one_line_of_error(tmp_path):
    with pytest.raises(ConfigError, match=r"task\.options\.path: .*nowhere"):
        CharLm(path=str(tmp_path / "nowhere")).train_data()
    (tmp_path / "short").write_text("abc")
    with pytest.raises(ConfigError, match="0 training windows of 32, too few for users = 100"):
        CharLm(path=str(tmp_path / "short")).train_data()
