"""Workers compute what one process would, survive their own deaths, and leave nothing behind."""

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedsys._flwr_private import set_task_identity
from fedsys.engine.crew import WorkerDied
from fedsys.engine.pool import CallFailed, Pool
from fedsys.errors import ConfigError

NODES = (1, 2, 3, 4)
APP = '''
import os, pathlib, signal, sys, time
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from fedsys.errors import ConfigError

app = ClientApp()


class Unpicklable(Exception):
    """Cannot be made again from its arguments."""

    def __init__(self, first, second):
        super().__init__(first)


@app.train()
def train(message, context):
    config = message.content["config"]
    counter = context.state.setdefault("count", MetricRecord({"n": 0}))
    counter["n"] += 1
    act(config["act"], pathlib.Path(config["folder"]), context.node_id)
    arrays = ArrayRecord([a.numpy() * 2 + counter["n"] for a in message.content["x"].values()])
    metrics = MetricRecord({"node": context.node_id, "calls": counter["n"], "pid": os.getpid()})
    return Message(RecordDict({"x": arrays, "metrics": metrics}), reply_to=message)


def act(what, folder, node):
    started = folder / f"started-{node}-{time.monotonic_ns()}"
    started.touch()
    if what == "raise":
        raise Unpicklable("boom", 2)
    if what == "exit":
        sys.exit("gone")
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "die once" and len(list(folder.glob(f"started-{node}-*"))) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "sleep":
        time.sleep(60)
    if what == "slow":
        time.sleep(0.5)


def nothing(message, context):
    return None


def complain(run_config):
    raise ConfigError("no such folder")


def refuse(run_config):
    raise RuntimeError("no data here")
'''


@pytest.fixture(autouse=True)
def app_module(tmp_path, monkeypatch):
    """A module that worker processes can import, as they can a user's."""
    (tmp_path / "pool_test_app.py").write_text(APP)
    monkeypatch.syspath_prepend(tmp_path)
    set_task_identity(1)
    yield
    sys.modules.pop("pool_test_app", None)


def pool_of(workers, **options):
    options = {"app": "pool_test_app:app", **options}
    return Pool(
        options.pop("app"),
        workers=workers,
        run_config={},
        node_config_of=lambda node: {"partition-id": node - 1},
        **options,
    )


def ask(folder, acts):
    """One message for each pair of a node and what it shall do."""
    messages = []
    for node, act in acts:
        arrays = ArrayRecord([np.arange(3, dtype=np.float32) + node])
        config = ConfigRecord({"act": act, "folder": str(folder)})
        messages.append(Message(RecordDict({"x": arrays, "config": config}), node, "train"))
    return messages


def answers(pool, folder, acts):
    return [future.result() for future in pool.submit(ask(folder, acts))]


def shown(reply):
    """What must not depend on the workers: values and counters, or the last line of the error."""
    if reply.has_error():
        return reply.error.code, reply.error.reason.strip().splitlines()[-1]
    metrics = dict(reply.content["metrics"])
    metrics.pop("pid")
    return metrics, [a.numpy().tolist() for a in reply.content["x"].values()]


def starts(folder, node):
    return len(list(folder.glob(f"started-{node}-*")))


def pids_of(pool):
    return {worker.pid for worker in pool._crew.workers}


def exists(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_replies_and_state_are_the_same_for_one_two_and_three_workers(tmp_path):
    rounds = [
        [(1, ""), (2, "raise"), (3, ""), (4, "exit")],
        [(4, ""), (2, ""), (1, "raise"), (1, "")],
    ]
    seen = {}
    for workers in (1, 2, 3):
        with pool_of(workers) as pool:
            seen[workers] = [[shown(r) for r in answers(pool, tmp_path, acts)] for acts in rounds]

    assert seen[1] == seen[2] == seen[3]
    first, second = seen[1]
    assert first[1] == (2, "pool_test_app.Unpicklable: boom")
    assert first[3] == (2, "SystemExit: gone")
    # Node 2 raised in its first message: what it had counted by then is forgotten.
    assert [answer[0]["calls"] for answer in (second[0], second[1], second[3])] == [1, 1, 2]
    assert first[0][1] == [[3.0, 5.0, 7.0]]


def test_an_app_that_answers_with_no_message_is_an_error_reply(tmp_path):
    with pool_of(1, app="pool_test_app:nothing") as pool:
        (reply,) = answers(pool, tmp_path, [(1, "")])

    assert "returned a NoneType, not a Message" in reply.error.reason


def test_a_killed_worker_is_replaced_and_nothing_is_lost(tmp_path):
    acts = [(1, "slow"), (2, "die once"), (3, "slow"), (4, "slow")]
    with pool_of(2) as pool:
        after_death = [shown(reply) for reply in answers(pool, tmp_path, acts)]
        again = [shown(reply) for reply in answers(pool, tmp_path, acts)]
    with pool_of(1) as alone:
        plain = [shown(reply) for reply in answers(alone, tmp_path, acts)]
        plain_again = [shown(reply) for reply in answers(alone, tmp_path, acts)]

    assert after_death == plain
    assert again == plain_again


def test_one_death_costs_each_pending_message_one_more_attempt_at_most(tmp_path):
    acts = [(1, "slow"), (2, "die once"), (3, "slow"), (4, "slow")]
    with pool_of(2) as pool:
        first = pids_of(pool)
        futures = pool.submit(ask(tmp_path, acts))
        futures[1].result()
        second = pids_of(pool)
        results = [future.result() for future in futures]

        assert len(second) == len(first & second) + 1 == 2
        assert pids_of(pool) == second
    assert not any(reply.has_error() for reply in results)
    assert starts(tmp_path, 2) == 2
    assert all(1 <= starts(tmp_path, node) <= 2 for node in (1, 3, 4))


def test_a_message_that_kills_every_worker_is_blamed_and_the_others_are_answered(tmp_path):
    with pool_of(2) as pool:
        futures = pool.submit(ask(tmp_path, [(1, "die"), (2, "slow"), (3, "slow")]))
        with pytest.raises(WorkerDied, match="3 times at a message to node 1"):
            futures[0].result()

        assert starts(tmp_path, 1) == 3
        assert [shown(f.result())[0]["node"] for f in futures[1:]] == [2, 3]
        # The verdict stays, and the node is asked again as any other.
        assert isinstance(futures[0].exception(), WorkerDied)
        assert shown(answers(pool, tmp_path, [(1, "")])[0])[0]["calls"] == 1


def test_messages_to_one_node_run_one_after_the_other_even_if_nobody_asks(tmp_path):
    with pool_of(2) as pool:
        pool.submit(ask(tmp_path, [(1, "slow")]))
        (reply,) = answers(pool, tmp_path, [(1, "")])

    assert shown(reply)[0]["calls"] == 2


def test_asking_twice_gives_the_same_reply_and_does_not_bring_old_state_back(tmp_path):
    with pool_of(2) as pool:
        (early,) = pool.submit(ask(tmp_path, [(1, "")]))
        assert early.result() is early.result()
        answers(pool, tmp_path, [(1, "")])
        early.result()
        (third,) = answers(pool, tmp_path, [(1, "")])

    assert shown(third)[0]["calls"] == 3


@pytest.mark.parametrize("waiting_s", [0.0, 0.5])
def test_ctrl_c_is_for_the_parent_alone(tmp_path, waiting_s):
    """Also while workers are still starting."""
    before = set(multiprocessing.active_children())
    pool = pool_of(2)
    time.sleep(waiting_s)
    (nursery,) = set(multiprocessing.active_children()) - before
    os.kill(nursery.pid, signal.SIGINT)
    with pool:
        futures = pool.submit(ask(tmp_path, [(2, "slow"), (3, "slow")]))
        workers = pids_of(pool)
        for pid in workers:
            os.kill(pid, signal.SIGINT)
        results = [future.result() for future in futures]

    assert len(workers) == 2
    assert not any(reply.has_error() for reply in results)
    assert starts(tmp_path, 2) == starts(tmp_path, 3) == 1


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_no_worker_outlives_the_pool(tmp_path, error):
    """Nor does one that is busy."""
    before = set(multiprocessing.active_children())
    began_s = time.monotonic()
    try:
        with pool_of(2) as pool:
            futures = pool.submit(ask(tmp_path, [(1, "sleep"), (2, "")]))
            futures[1].result()
            workers = pids_of(pool)
            if error:
                raise error
    except KeyboardInterrupt:
        pass

    assert len(workers) == 2
    assert not any(exists(pid) for pid in workers)
    assert set(multiprocessing.active_children()) <= before
    assert time.monotonic() - began_s < 30


def test_workers_end_when_their_parent_is_killed(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, signal
            from fedsys.engine.pool import Pool

            if __name__ == "__main__":
                pool = Pool(
                    "pool_test_app:app", workers=2, run_config={}, node_config_of=lambda node: {}
                )
                with pool:
                    print(*(worker.pid for worker in pool._crew.workers), flush=True)
                    os.kill(os.getpid(), signal.SIGKILL)
            """
        )
    )
    killed = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    workers = [int(pid) for pid in killed.stdout.split()]
    until_s = time.monotonic() + 30
    while any(exists(pid) for pid in workers) and time.monotonic() < until_s:
        time.sleep(0.02)

    assert len(workers) == 2
    assert not any(exists(pid) for pid in workers)


def test_a_nursery_that_was_killed_is_replaced_when_a_worker_is_needed(tmp_path):
    before = set(multiprocessing.active_children())
    with pool_of(2) as pool:
        (nursery,) = set(multiprocessing.active_children()) - before
        nursery.kill()
        for pid in pids_of(pool):
            os.kill(pid, signal.SIGKILL)
        replies = answers(pool, tmp_path, [(1, ""), (2, "")])

    assert not any(reply.has_error() for reply in replies)


def test_a_model_for_many_is_written_once_and_seen_by_all(tmp_path):
    model = Array(np.arange(20_000, dtype=np.float32))
    config = ConfigRecord({"act": "", "folder": str(tmp_path)})
    content = RecordDict({"x": ArrayRecord({"w": model}), "config": config})
    with pool_of(2) as pool:
        for _ in range(3):
            messages = [Message(content, node, "train") for node in NODES]
            replies = [future.result() for future in pool.submit(messages)]
        (size_bytes,) = [segment.size_bytes for segment in pool._segments._free]

    assert len(model.data) < size_bytes < 2 * len(model.data)
    for reply in replies:
        (array,) = reply.content["x"].values()
        np.testing.assert_array_equal(array.numpy(), 2 * model.numpy() + 3)


def test_a_call_runs_in_a_worker_and_says_what_it_raised():
    with pool_of(2) as pool:
        there, wrong = pool.call("os:getpid"), pool.call("math:sqrt", -1.0)
        assert there.result() in pids_of(pool)
        with pytest.raises(CallFailed, match="math domain error"):
            wrong.result()
    with pool_of(1) as here:
        assert here.call("os:getpid").result() == os.getpid()
        assert "math domain error" in str(here.call("math:sqrt", -1.0).exception())


def test_an_app_that_cannot_be_imported_is_said_before_the_first_message(capfd):
    with (
        pytest.raises(ModuleNotFoundError, match="no_such_module"),
        pool_of(1, app="no_such_module:app"),
    ):
        pass
    with pytest.raises(WorkerDied, match="do not start"), pool_of(2, app="no_such_module:app"):
        pass

    assert "No module named 'no_such_module'" in capfd.readouterr().err


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_wrong_with_the_data_is_said_as_it_is(workers, capfd):
    with (
        pytest.raises(ConfigError, match=r"^no such folder$"),
        pool_of(workers, warm_up="pool_test_app:complain"),
    ):
        pass

    assert capfd.readouterr().err == ""


def test_workers_that_cannot_start_are_said_at_once(tmp_path, capfd):
    with (
        pytest.raises(WorkerDied, match="do not start"),
        pool_of(2, warm_up="pool_test_app:refuse"),
    ):
        pass

    assert "RuntimeError: no data here" in capfd.readouterr().err


def test_a_script_without_main_guard_ends_with_a_hint(tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text(
        textwrap.dedent(
            """
            from fedsys.engine.pool import Pool

            options = {"run_config": {}, "node_config_of": lambda node: {}}
            with Pool("pool_test_app:app", workers=2, **options):
                pass
            """
        )
    )
    ended = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False
    )

    assert ended.returncode == 1
    assert "if __name__ == '__main__'" in ended.stderr.splitlines()[-1]
