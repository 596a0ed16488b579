"""A summary is what the rounds add up to, and nothing else."""

import pytest

from fedsys.telemetry.summary import Cost, stage_seconds, summarise
from fedsys.types import ClientPlan, ClientReport, RoundPlan, RoundRecord


def report(accepted=True, **changes):
    fields = {"node_id": 1, "accepted": accepted, "reason": ""}
    return ClientReport(**(fields | changes))


ASKED = ClientPlan(node_id=1, local_steps=1, lr=0.1, uplink="none", reason="")


def record(number, metric=None, start_s=0.0, end_s=None, reports=(), up=100, down=1000):
    return RoundRecord(
        round=number,
        plan=RoundPlan(round=number, clients=(ASKED,), downlink="none", deadline_s=None, reason=""),
        reports=tuple(reports),
        start_s=start_s,
        end_s=10.0 * number if end_s is None else end_s,
        downlink_bytes=down,
        uplink_bytes=up,
        train_loss=None,
        step_norm=None,
        agreement=None,
        test_metric=metric,
    )


def test_cost_to_target_counts_every_round_up_to_the_first_that_meets_it():
    records = [
        record(1, 0.5),
        record(2, None, up=7),
        record(3, 0.9),
        record(4, 0.95),
        record(5, 0.85),
    ]
    found = summarise(records, 0.9, "rounds")

    assert found.at_target == Cost(rounds=3, seconds=30.0, uplink_bytes=207, downlink_bytes=3000)
    assert found.total == Cost(rounds=5, seconds=50.0, uplink_bytes=407, downlink_bytes=5000)
    assert (found.final_metric, found.best_metric, found.stopped_by) == (0.85, 0.95, "rounds")


@pytest.mark.parametrize("target", [None, 0.96])
def test_a_target_not_reached_is_not_a_number(target):
    assert summarise([record(1, 0.95)], target).at_target is None


def test_the_final_metric_is_of_the_last_evaluated_round():
    assert summarise([record(1, 0.5), record(2, 0.6), record(3)], None).final_metric == 0.6


def test_a_run_without_rounds_has_cost_nothing_and_reached_nothing():
    found = summarise([], 0.5)
    assert (found.total, found.at_target, found.final_metric) == (Cost(), None, None)


def test_stages_of_an_average_client_add_up_to_the_round():
    fast = report(download_s=1.0, train_s=2.0, upload_s=3.0)
    slow = report(download_s=2.0, train_s=2.0, upload_s=6.0)
    lost = report(accepted=False, download_s=50.0)
    late = report(node_id=2, staleness=1, train_s=50.0)  # of another round's
    records = [
        record(1, start_s=0.0, end_s=10.0, reports=[fast, slow, lost, late]),
        record(2, start_s=10.0, end_s=16.0, reports=[fast]),
    ]
    found = stage_seconds(records)

    # Round 1: means 1.5, 2, 4.5 and 2 of waiting; round 2: 1, 2, 3 and none.
    assert found == {"download": 1.25, "train": 2.0, "upload": 3.75, "wait": 1.0}
    assert sum(found.values()) == pytest.approx((10.0 + 6.0) / 2)


def test_a_round_in_which_all_fail_is_all_waiting():
    failed = report(accepted=False, reason="crashed", train_s=1.0)
    assert stage_seconds([record(1, end_s=8.0, reports=[failed])])["wait"] == 8.0
