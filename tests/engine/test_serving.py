"""A block is the same on the other side of a pipe, though it is sent by columns."""

import pickle

from flwr.app import ConfigRecord, Error, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedsys._flwr_private import set_task_identity
from fedsys.engine.serving import Block, Order, Service

set_task_identity(1)
VALUES = st.booleans() | st.integers(0, 1) | st.floats(0, 1) | st.text(max_size=2)
CONFIGS = st.dictionaries(st.sampled_from(["a", "b", ""]), VALUES, max_size=3)
STATES = st.none() | st.builds(
    lambda n: RecordDict({"n": ConfigRecord({"n": n})}), st.integers(0, 9)
)


def shown(block):
    """All that a worker sees of it; types too, because True equals 1."""
    return repr(
        [
            (
                *(
                    sorted(part.items())
                    for part in (vars(order.message.metadata), order.node_config)
                ),
                order.state,
            )
            for order in block.orders
        ]
    ) + repr((block.together, block.sums))


@given(
    st.lists(st.tuples(st.integers(1, 3), CONFIGS, STATES), min_size=1, max_size=5),
    st.booleans(),
    st.none() | st.booleans(),
)
def test_a_block_arrives_as_it_was_sent(rows, together, sums):
    shared = RecordDict({"x": ConfigRecord({"lr": 0.5})})
    orders = [
        Order(Message(shared, node, "train", group_id="7"), config, state)
        for node, config, state in rows
    ]
    block = Block(orders, together, sums)
    arrived = pickle.loads(pickle.dumps(block))
    assert shown(arrived) == shown(block)
    assert {id(order.message.content) for order in arrived.orders} == {
        id(arrived.orders[0].message.content)
    }
    assert arrived.orders[0].message.content == shared


def test_so_does_one_with_an_error_in_it():
    asked = Message(RecordDict(), 5, "train")
    failed = Message(Error(2, "gone"), reply_to=asked)
    arrived = pickle.loads(
        pickle.dumps(Block([Order(asked, {}, None), Order(failed, {}, None)], False))
    )
    assert arrived.orders[1].message.error.reason == "gone"


def test_a_cohort_handler_that_fails_is_told_of_once_and_the_app_serves_one_by_one(
    tmp_path, monkeypatch, capsys
):
    (tmp_path / "half_app.py").write_text(
        "from flwr.app import Message, RecordDict\n"
        "def cohort(messages, contexts, sums):\n"
        "    raise ValueError('no luck')\n"
        "def app(message, context):\n"
        "    return Message(RecordDict(), reply_to=message)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    service = Service(app="half_app:app", run_id=1, run_config={}, cohort="half_app:cohort")
    messages = [Message(RecordDict(), node, "train") for node in (1, 2)]
    block = Block([Order(message, {}, None) for message in messages], True, None)
    for _ in range(2):
        answers = service.serve(block)
        assert [reply.has_error() for reply, _ in answers] == [False, False]
    told = capsys.readouterr().err
    assert told.count("half_app:cohort failed, clients train one by one: ValueError") == 1
