"""The model goes to arrays and back with exact names, shapes and dtypes."""

import numpy as np
import pytest
import torch
from torch import nn

from clients.weights import load_arrays, to_arrays
from fedsys.errors import FedsysError


class Scalars(nn.Module):
    """A model with 0-d tensors and an integer buffer, which averaging code tends to break."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("seen", torch.tensor(2**60 + 1))


def test_scalars_and_counters_keep_shape_dtype_and_value():
    arrays = to_arrays(Scalars())

    assert list(arrays) == list(Scalars().state_dict())
    assert arrays["scale"].shape == arrays["seen"].shape == ()
    assert arrays["seen"].dtype == arrays["norm.num_batches_tracked"].dtype == np.int64
    model = Scalars()
    arrays["scale"][...] = 3
    load_arrays(model, arrays)
    assert model.scale.item() == 3
    assert model.seen.item() == 2**60 + 1


def test_arrays_are_copies():
    model = nn.Linear(2, 2)
    arrays = to_arrays(model)
    arrays["weight"][:] = 7

    assert not (model.weight == 7).any()


def test_read_only_arrays_can_be_loaded():
    model, arrays = nn.Linear(2, 2), to_arrays(nn.Linear(2, 2))
    for array in arrays.values():
        array.flags.writeable = False

    load_arrays(model, arrays)

    np.testing.assert_array_equal(to_arrays(model)["weight"], arrays["weight"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.pop("bias"), r"lacks tensor 'bias' \[2\]"),
        (lambda a: a.update(extra=np.ones(1)), "'extra' is not in this client's model"),
        (
            lambda a: a.update(bias=np.ones(3, np.float32)),
            r"'bias' has shape \[3\], this client's model has \[2\]",
        ),
    ],
)
def test_a_model_that_does_not_fit_is_named_and_changes_nothing(change, message):
    model = nn.Linear(2, 2)
    before, arrays = to_arrays(model), to_arrays(nn.Linear(2, 2))
    change(arrays)

    with pytest.raises(FedsysError, match=message):
        load_arrays(model, arrays)

    np.testing.assert_array_equal(to_arrays(model)["weight"], before["weight"])


def test_bfloat16_weights_are_refused_with_what_to_do_instead():
    with pytest.raises(FedsysError, match="precision = 'bf16'"):
        to_arrays(nn.Linear(2, 2).to(torch.bfloat16))
