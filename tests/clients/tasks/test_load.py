"""A task section is a checked task or one line of error."""

import pytest

from clients.tasks._load import task_for
from fedsys.config.schema import TaskConfig
from fedsys.errors import ConfigError

OWN_TASK = """
from dataclasses import dataclass, field
from clients.tasks.digits import Digits

@dataclass(frozen=True)
class Own(Digits):
    sizes: tuple[int, ...] = (1,)
    required: float = field(kw_only=True)

@dataclass(frozen=True)
class Half:
    metric = "accuracy"
    def train_data(self): ...

@dataclass(frozen=True)
class Bare:
    pass

class Plain:
    pass
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_task.py").write_text(OWN_TASK)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("own")
def test_a_users_class_is_a_task_and_its_fields_are_options():
    config = TaskConfig(name="own_task:Own", options={"sizes": [3, 4], "required": 2})

    task = task_for(config)

    assert (task.sizes, task.required) == ((3, 4), 2.0)
    assert len(task.train_data()) == 1438


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("digit", {}, "no task 'digit'; did you mean 'digits'"),
        ("digits", {"models": "cnn"}, "no option 'models'; did you mean 'model'"),
        ("digits", {"model": "cmm"}, "task 'digits': model must be one of mlp, cnn, got 'cmm'"),
        ("char_lm", {}, "task 'char_lm': needs path"),
        ("char_lm", {"path": "x", "users": "9"}, "users must be a whole number, got '9'"),
        ("char_lm", {"path": "x", "users": 0}, "task 'char_lm': users must be at least 1, got 0"),
        ("own_task:Missing", {}, "cannot be loaded"),
        ("own_task:Half", {}, "has no test_data, build_model, loss, evaluate"),
        ("own_task:Bare", {"x": 1}, "task 'own_task:Bare': no option 'x'; it has none"),
        ("own_task:Plain", {}, "has no metric, train_data"),
        ("no_such_module:Task", {}, "cannot be loaded"),
    ],
)
def test_what_is_no_task_is_one_line_of_error(name, options, message):
    with pytest.raises(ConfigError, match=message) as caught:
        task_for(TaskConfig(name=name, options=options))

    assert "\n" not in str(caught.value)
