"""The report is one page that needs nothing else, tells no lies by escaping, and never changes."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from fedsys.telemetry.comparison import Comparison, Trial, compare
from fedsys.telemetry.decisions import decisions, left_out
from fedsys.telemetry.plots import metric_plot, stage_plot
from fedsys.telemetry.report import report_html
from fedsys.types import ClientPlan, ClientReport, RoundPlan, RoundRecord

NASTY = "<script>alert('$x_1$')</script> & \"co\""


def record(number, *, uplink="none", steps=5, seconds=10.0, metric=0.5, reason="as before"):
    plans = tuple(
        ClientPlan(node_id=n, local_steps=steps + n, lr=0.1, uplink=uplink, reason=NASTY)
        for n in range(2)
    )
    report = ClientReport(
        node_id=0,
        accepted=True,
        reason="",
        download_s=seconds * 0.2,
        train_s=seconds * 0.3,
        upload_s=seconds * 0.4,
    )
    late = ClientReport(node_id=1, accepted=False, reason="late <b>")
    return RoundRecord(
        round=number,
        plan=RoundPlan(
            round=number, clients=plans, downlink="fp16", deadline_s=None, reason=reason
        ),
        reports=(report, late),
        start_s=seconds * (number - 1),
        end_s=seconds * number,
        downlink_bytes=100,
        uplink_bytes=1000,
        train_loss=None,
        step_norm=None,
        agreement=None,
        test_metric=metric,
    )


def trial(rounds=10, seconds=10.0, **changes):
    return Trial(
        [record(n, seconds=seconds, metric=n / rounds, **changes) for n in range(1, rounds + 1)],
        "rounds",
    )


@pytest.fixture
def comparison() -> Comparison:
    seeds = (1, 2, 3)
    trials = {
        NASTY: {s: trial(seconds=10.0 + s) for s in seeds},
        "fast": {s: trial(seconds=0.5 + s / 10, uplink="topk(0.05)|int8") for s in seeds},
    }
    return compare("name " + NASTY, 0.9, trials)


class Page(HTMLParser):
    """Collects what a browser would fetch or run, and checks that tags are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.fetched: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag != "meta":
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "xlink:href") and not value.startswith("#"):
                self.fetched.append(value)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_page_is_well_formed_fetches_nothing_and_runs_nothing(comparison):
    text = report_html(comparison)
    page = Page(text)
    assert page.open == []
    assert page.fetched == []
    assert not page.tags & {"script", "link", "img", "iframe", "object"}
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    assert len(page.ids) == len(set(page.ids))


def test_the_same_comparison_gives_the_same_page(comparison):
    assert report_html(comparison) == report_html(comparison)


def test_the_page_of_one_run_holds_its_figures():
    text = report_html(compare("alone", 0.9, {"only": {4: trial()}}))
    assert "only: nothing to compare it with." in text
    assert "seed 4, 10 rounds, ended by rounds" in text
    assert "<td>90.0</td>" in text  # seconds: the ninth round of ten seconds


def test_a_run_without_any_evaluation_or_round_still_has_a_page():
    bare = Trial([record(1, metric=None)], "")
    Page(report_html(compare("bare", None, {"a": {1: bare}, "none": {1: Trial([], "")}})))


@pytest.mark.parametrize("axis", ["seconds", "uplink", "rounds"])
def test_pictures_are_xml_with_one_line_a_strategy(comparison, axis):
    root = ElementTree.fromstring(metric_plot(comparison, axis))
    lines = [e for e in root.iter() if re.fullmatch(rf"{axis}-line2d_\d+", e.get("id", ""))]
    drawn = [
        line
        for line in lines
        if any("stroke-width: 1.7" in (p.get("style") or "") for p in line.iter())
    ]
    assert len(drawn) == 2


def test_runs_far_apart_get_a_logarithmic_axis(comparison):
    assert "(log)" in metric_plot(comparison, "seconds")
    assert "(log)" not in metric_plot(comparison, "rounds")


def test_the_bar_of_a_strategy_names_it_literally(comparison):
    root = ElementTree.fromstring(stage_plot(comparison))
    texts = {"".join(e.itertext()).strip() for e in root.iter() if e.tag.endswith("text")}
    assert NASTY in texts


def test_decisions_show_both_ends_and_each_change_between():
    records = [record(n) for n in range(1, 21)]
    records[9:20] = [record(n, uplink="int8", steps=2) for n in range(10, 21)]
    assert [d.round for d in decisions(records)] == [1, 2, 3, 10, 18, 19, 20]
    changed = decisions(records)[3]
    assert (changed.uplink, changed.local_steps, changed.accepted) == ("int8", "2-3", 1)


def test_late_updates_are_told_apart_and_who_is_at_work_is_not_left_out():
    one = record(4)
    busy = ClientReport(node_id=1, accepted=False, reason="at work", at_work=True)
    late = ClientReport(node_id=7, accepted=True, reason="", staleness=2)
    one = replace(one, reports=(one.reports[0], busy, late))
    (found,) = decisions([one])
    assert (found.clients, found.accepted, found.late) == (2, 1, 1)
    assert not left_out([one])
    page = report_html(compare("scene", None, {"quorum": {1: Trial([one], "rounds")}}))
    assert "1 of 2 + 1 late" in page


def test_a_short_run_shows_each_round_once():
    assert [d.round for d in decisions([record(n) for n in (1, 2, 3, 4)])] == [1, 2, 3, 4]
    assert decisions([]) == []


def test_reasons_for_lost_updates_are_counted():
    assert left_out([record(1), record(2)]) == {"late <b>": 2}
