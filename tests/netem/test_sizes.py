"""The length of a message is that of Flower's own encoding, also where it is remembered."""

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from hypothesis import given
from hypothesis import strategies as st

from netem.sizes import record_bytes

NAMES = st.text(max_size=8)
INTEGERS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, 63, 64, -64, -65, 8191, 8192])
FLOATS = st.floats() | st.just(0.0)
METRICS = INTEGERS | FLOATS | st.lists(INTEGERS, max_size=4) | st.lists(FLOATS, max_size=4)
CONFIGS = METRICS | st.text(max_size=200) | st.binary(max_size=200) | st.booleans()
CONFIGS |= st.lists(st.text(max_size=4), max_size=3) | st.lists(st.booleans(), max_size=3)


@given(st.dictionaries(NAMES, METRICS, max_size=4), st.dictionaries(NAMES, CONFIGS, max_size=4))
def test_records_count_with_their_deflated_length(metrics, config):
    for record in (MetricRecord(metrics), ConfigRecord(config)):
        assert record_bytes(record) == len(record.deflate())


def test_arrays_count_with_their_data_alone():
    array = Array("uint8", (5,), "any", b"12345")
    assert record_bytes(ArrayRecord({"x": array, "y": array})) == 10
