"""Over scenes: ratios pool by scene, lost scenes are counted, hindsight picks what was best."""

import math

import pytest

from fedsys.config.schema import Budget
from fedsys.telemetry.comparison import Trial, compare, comparison_json, share_of_best
from fedsys.telemetry.figures import cost_text
from fedsys.telemetry.hindsight import best_row, schedules
from fedsys.telemetry.scenes import Scenes, scenes_json
from fedsys.telemetry.scenes_report import scenes_html
from fedsys.telemetry.statistics import pooled_ratio
from fedsys.telemetry.verdict import scenes_verdict, target_text, verdict
from fedsys.types import RoundPlan, RoundRecord

PLAN = RoundPlan(round=1, clients=(), downlink="none", deadline_s=None, reason="")


def run(*ends, stop="rounds"):
    """Rounds given as (end in seconds, accuracy), a thousand bytes each."""
    records, before = [], 0.0
    for number, (end_s, metric) in enumerate(ends, start=1):
        records.append(
            RoundRecord(
                round=number,
                plan=PLAN,
                reports=(),
                start_s=before,
                end_s=end_s,
                downlink_bytes=1000,
                uplink_bytes=1000,
                train_loss=None,
                step_norm=None,
                agreement=None,
                test_metric=metric,
            )
        )
        before = end_s
    return Trial(records, stop)


def reaching(*seconds):
    """One run a seed, at the target of 0.9 after so many seconds."""
    return {seed: run((s / 2, 0.5), (s, 0.9)) for seed, s in enumerate(seconds, start=1)}


def scene(name, base, ours, **more):
    trials = {"base": reaching(*base), "ours": reaching(*ours), **more}
    return compare(name, 0.9, trials)


def test_scenes_are_pooled_by_one_ratio_each():
    # Ratios 1/2, 1/4, 1/8: logs -0.693, -1.386, -2.079; sd 0.693, margin 4.303 * 0.693 / sqrt(3).
    found = pooled_ratio([0.5, 0.25, 0.125])
    assert found.mean == pytest.approx(0.25)
    assert found.low == pytest.approx(0.25 * math.exp(-4.303 * math.log(2) / math.sqrt(3)))
    assert found.high == pytest.approx(0.25 * math.exp(4.303 * math.log(2) / math.sqrt(3)))
    assert not found.significant


def test_standings_weigh_scenes_alike_whatever_their_seeds():
    scenes = Scenes(
        [
            scene("a", [100] * 6, [50] * 6),
            scene("b", [100], [200]),
            scene("c", [10, 10, 10], [5, 5, 5]),
        ]
    )
    base, ours = scenes.standings
    assert base.ratios["seconds"].mean == 1
    assert ours.ratios["seconds"].mean == pytest.approx((0.5 * 2 * 0.5) ** (1 / 3))
    assert ours.lost == ("b",)
    assert ours.lost_clearly == ()  # one pair
    assert ours.won_clearly == ("a", "c")
    assert ours.lost_fraction == pytest.approx(1 / 3)


def test_a_scene_that_nobody_got_through_is_left_out_and_said_so():
    hard = {seed: run((100, 0.1)) for seed in (1, 2, 3)}
    nobody = compare("hard", 0.9, {"base": hard, "ours": hard})
    scenes = Scenes([nobody, scene("easy", [10, 11, 12], [5, 6, 5])])
    ours = scenes.standings[1]
    assert ours.known == ("easy",)
    line = scenes_verdict(scenes)[0]
    assert "over 1 scene, too few to call anything significant" in line
    assert "in 1 nothing can be said" in line


def test_the_verdict_over_scenes_claims_no_more_than_scenes_tell():
    won = Scenes([scene(name, [100, 110, 90], [50, 54, 46]) for name in "abcde"])
    assert scenes_verdict(won) == [
        "ours against base over 5 scenes: 2.00 times less time to target (95 % interval 2.00 to "
        "2.00); no significant difference in uplink bytes to target (1.00x, 95 % interval 1.00x "
        "to 1.00x); 0 of 5 scenes are lost."
    ]
    mixed = Scenes(
        [scene("a", [10] * 3, [5] * 3), scene("b", [10] * 3, [9] * 3), scene("c", [5] * 3, [9] * 3)]
    )
    line = scenes_verdict(mixed)[0]
    assert "no significant difference in time to target (0.932x" in line
    assert "1 of 3 scenes are lost, 1 of them significantly (c)" in line


def test_runs_that_missed_the_target_are_scored_at_the_horizon():
    spent = {1: run((100, 0.5)), 2: run((130, 0.5))}
    gave_up = {1: run((40, 0.5)), 2: run((130, 0.5))}
    comparison = compare(
        "x",
        0.9,
        {"base": reaching(50, 50), "spent": spent, "gave up": gave_up},
        budget=Budget(seconds=100),
    )
    _, spent, gave_up = comparison.rows
    for row in (spent, gave_up):
        values = {seed: score.value for seed, score in row.scores("seconds").items()}
        assert values == {1: 100, 2: 130}
        assert all(score.censored for score in row.scores("seconds").values())
        assert {s: x.value for s, x in row.scores("uplink_bytes").items()} == {1: 1000, 2: 1000}
        assert comparison.ratio(row, "seconds").mean == pytest.approx(math.sqrt(2 * 2.6))
    assert comparison.ratio(spent, "seconds").bound == ">"


def test_the_horizon_is_no_bound_for_a_run_that_another_budget_ended_before():
    """It may need more than the horizon or less: nothing that it says is 'at least'."""
    gave_up = {seed: run((40, 0.5)) for seed in (1, 2, 3)}
    rows = {"base": reaching(20, 20, 20), "ours": gave_up}
    comparison = compare("x", 0.9, rows, budget=Budget(seconds=100))
    ours = comparison.rows[1]
    assert comparison.ratio(ours, "seconds").bound == "~"
    assert comparison.ratio(ours, "uplink_bytes").bound == ">"
    assert cost_text(ours.to_target("seconds"), "seconds") == "~100"
    assert cost_text(ours.to_target("uplink_bytes"), "uplink_bytes").startswith(">")
    assert "it never reached the target" in verdict(comparison)[0]
    some = compare("x", 0.9, rows | {"ours": gave_up | reaching(20)}, budget=Budget(seconds=100))
    assert "at least" not in verdict(some)[0].split(";")[0]
    swapped = compare("x", 0.9, dict(reversed(rows.items())), budget=Budget(seconds=100))
    assert swapped.ratio(swapped.rows[1], "seconds").bound == "~"


def test_a_bound_in_one_scene_makes_the_mean_a_bound():
    missed = {seed: run((40, 0.5)) for seed in (1, 2, 3)}
    bounded = compare("x", 0.9, {"base": missed, "ours": reaching(10, 11, 12)})
    plain = scene("y", [10, 11, 12], [5, 5, 5])
    other = compare("z", 0.9, {"base": reaching(10, 11, 12), "ours": missed})
    bounds = [
        Scenes(scenes).standings[1].ratios["seconds"].bound
        for scenes in ([plain], [plain, bounded], [plain, other], [bounded, other])
    ]
    assert bounds == ["", "<", ">", "~"]


def test_a_scene_that_only_the_baseline_got_through_is_lost():
    missed = {seed: run((10, 0.5)) for seed in (1, 2, 3)}
    scenes = [compare(name, 0.9, {"base": reaching(10, 11, 12), "ours": missed}) for name in "abc"]
    standing = Scenes(scenes).standings[1]
    assert standing.lost == standing.missed == ("a", "b", "c")
    (line,) = scenes_verdict(Scenes(scenes))
    assert "it never reached the target in 3 of them; 3 of 3 scenes are lost" in line


def test_a_share_of_the_best_is_of_the_best_median():
    trials = {
        "steady": {1: run((10, 0.7), (20, 0.8)), 2: run((10, 0.79), (20, 0.6))},
        "lucky": {1: run((10, 0.99)), 2: run((10, 0.5))},
    }
    assert share_of_best(0.98, trials) == pytest.approx(0.98 * 0.795)
    comparison = compare("x", 0.5, trials, share=0.98)
    assert comparison.target == pytest.approx(0.98 * 0.795)
    assert target_text(comparison) == "target 77.9 % (98.0 % of the best)"
    assert [row.reached for row in comparison.rows] == [2, 1]
    unknown = {"a": {1: run((10, None))}}
    assert share_of_best(0.98, unknown) is None


def rows(**trials):
    return list(compare("grid", 0.9, trials).rows)


def test_hindsight_takes_the_least_geometric_mean_of_those_that_miss_least():
    found = rows(
        even=reaching(20, 20),  # mean 20
        uneven=reaching(5, 70),  # sqrt(350) = 18.7
        half={1: run((2, 0.9)), 2: run((3, 0.5))},
        once={1: run((1, 0.9))},
    )
    assert best_row(found).label == "uneven"
    assert best_row(rows(never={1: run((10, 0.1))})) is None
    assert best_row([]) is None


def test_schedules_begin_with_who_is_ahead_and_end_with_who_arrives_first():
    found = rows(
        sprinter={1: run((10, 0.8), (1000, 0.9))},
        runner={1: run((29, 0.3), (60, 0.6), (90, 0.9))},
        walker={1: run((50, 0.2), (200, 0.9))},
    )
    tried = schedules(found)
    assert {one.switch_s for one in tried} == {30.0, 60.0}
    assert tried[0].first == "sprinter"
    assert ("sprinter", "runner", 30.0) in {(o.first, o.second, o.switch_s) for o in tried}
    assert all(one.first != one.second for one in tried)
    assert schedules(rows(never={1: run((10, 0.1))})) == []


def test_the_verdict_names_the_oracle_and_the_distance_to_it():
    comparison = scene("x", [100, 110, 120], [52, 55, 63])
    oracle = compare("grid", 0.9, {"2 epochs, int8": reaching(50, 50, 60)}).rows[0]
    with_oracle = type(comparison)(
        comparison.name, 0.9, comparison.rows, {"best fixed plan": oracle}
    )
    lines = verdict(with_oracle)
    assert "The best fixed plan in hindsight is 2 epochs, int8." in lines
    assert any(line.startswith("ours takes 1.06x its time (95 % interval ") for line in lines)
    found = comparison_json(with_oracle, lines)
    assert found["rows"][1]["seconds_over_oracle"]["best fixed plan"]["mean"] == pytest.approx(
        (1.04 * 1.1 * 1.05) ** (1 / 3)
    )
    assert found["oracles"]["best fixed plan"]["strategy"] == "2 epochs, int8"
    pooled = Scenes([with_oracle, with_oracle, with_oracle]).standings[1].over_oracle
    assert pooled["best fixed plan"].mean == pytest.approx((1.04 * 1.1 * 1.05) ** (1 / 3))


def test_the_page_over_scenes_escapes_names_and_links_to_each_scene():
    scenes = Scenes([scene("<b>", [10, 11, 12], [5, 5, 5]), scene("two", [4, 4, 5], [8, 8, 9])])
    page = scenes_html(scenes, {"two": "two/report.html"})
    assert '<td class="label">&lt;b&gt;</td>' in page
    assert '<a href="two/report.html">two</a>' in page
    assert "1 of 2" in page
    assert page == scenes_html(scenes, {"two": "two/report.html"})
    found = scenes_json(scenes, [[], []], ["x"])
    assert found["standings"][1]["lost_scenes"] == ["two"]
    assert [one["experiment"] for one in found["scenes"]] == ["<b>", "two"]
