"""One text for any link: what it may be, what it becomes, and that nothing else gets through."""

import os
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsys.errors import ConfigError
from netem.profiles import PROFILES, link_for
from netem.spec import LinkSpec, link_from_text, parse_link
from netem.transfer import plan_transfer

ROOT = Path(__file__).parents[2]
RECORDED = ROOT.parent / "shared" / "traces"


def took_s(link, way="up"):
    return plan_transfer(link, way, 300_000, 2.0, seed=1, flow=(1,)).finish_s()


def refused(text):
    """The error for ``text``; empty when it is a link."""
    try:
        link_from_text(text, 1, 1)
    except ConfigError as error:
        return str(error)
    return ""


@pytest.fixture
def write(tmp_path):
    def to_file(name, text):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return to_file


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_is_the_link_that_an_experiment_gets_under_that_name(name):
    for node in (1, 2):
        assert took_s(link_from_text(name, 7, node)) == took_s(link_for(name, {}, 7, node))


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (
            "constant(up_bps=1e6, down_bps=2e6, delay_ms=50)",
            {"up_bps": 1e6, "down_bps": 2e6, "delay_ms": 50},
        ),
        (
            " constant ( up_bps = 1_000 , down_bps=inf,) ",
            {"up_bps": 1000, "down_bps": float("inf")},
        ),
        ("lte(spread=0, tcp=bbr, tls=false)", {"spread": 0, "tcp": "bbr", "tls": False}),
        ('lte(tcp="none")', {"tcp": "none"}),
        ("lte(outages=[[1, 2.5], [7, 8]])", {"outages": [[1, 2.5], [7, 8]]}),
        ("trace(up_file=a/b.up, down_file='c, (d)')", {"up_file": "a/b.up", "down_file": "c, (d)"}),
        ("trace(up_file=2020-01-01)", {"up_file": "2020-01-01"}),
        ("lte()", {}),
    ],
)
def test_options_in_brackets_are_toml_with_quotes_optional(text, options):
    spec = parse_link(text)

    assert spec == LinkSpec(text.partition("(")[0].strip(), options)
    assert [type(v) for v in spec.options.values()] == [type(v) for v in options.values()]


values = st.recursive(
    st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)
keys = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)


@given(st.sampled_from([*PROFILES, "constant", "trace"]), st.dictionaries(keys, values, max_size=4))
def test_a_spec_reads_back_from_its_own_text(name, options):
    spec = LinkSpec(name, options)

    assert parse_link(str(spec)) == spec


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "got no text"),
        ("lt", "no link 'lt', and no file of that name; did you mean 'lte'?"),
        ("lte(sprd=0)", "no option 'sprd'; did you mean 'spread'?"),
        ("lte(spread=x)", "spread must be a number, got 'x'"),
        ("lte(spread)", "write 'spread' as option=value"),
        ("lte(spread=1, spread=2)", "spread is given twice"),
        ("lte(tcp=)", "cannot read the value ''"),
        ("lte(tcp='bbr)", "a ' is missing"),
        ("lte(outages=[[1, 2])", "a ] is missing"),
        ("lte(delay_ms=1", "write name(option=value, ...)"),
        ("lte(delay_ms=99999999999999999999)", "below 2^63"),
        ("constant(up_bps=1e6)", "needs down_bps"),
        ("constant(up_bps=0, down_bps=1)", "up_bps must be above 0"),
        ("nowhere/to.toml", "nowhere/to.toml': no such file"),
        ("link.toml", "no such file"),
        ("os:getcwd", "no link model"),
        ("nowhere.at.all:Link", "cannot be loaded"),
        (str(ROOT / "LICENSE"), "nor is it a TOML file that describes a link"),
    ],
)
def test_what_is_no_link_is_one_line_that_says_why(text, words):
    with pytest.raises(ConfigError) as caught:
        link_from_text(text, 1, 1)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


pieces = st.lists(
    st.sampled_from(
        [
            *("lte", "constant", "trace", "(", ")", "[", "]", "{", "}", ",", "=", '"', "'", "\\"),
            *("up_bps", "down_bps", "delay_ms", "outages", "tcp", "1e6", "-1", "nan", "[[1,2]]"),
            *(
                "true",
                "\n",
                "\0",
                "#",
                " ",
                "/",
                "9" * 30,
                "\udc80",
                "é",
                "a:b",
                "..",
                "2020-01-01",
            ),
        ]
    ),
    max_size=14,
).map("".join)


@given(pieces | st.text())
def test_no_text_raises_anything_but_a_short_config_error(text):
    assert len(refused(text)) < 500 + len(text)


@given(st.binary() | st.text(string.printable).map(str.encode), st.sampled_from(["toml", "csv"]))
def test_no_file_raises_anything_but_a_config_error(tmp_path_factory, content, ending):
    path = tmp_path_factory.getbasetemp() / f"garbage.{ending}"
    path.write_bytes(content)
    assert str(path) in (refused(str(path)) or str(path))


def test_very_long_and_very_deep_texts_are_refused():
    for text in ("x" * 100_000, "lte(outages=" + "[" * 5000 + "]" * 5000 + ")", "a/" * 5000):
        with pytest.raises(ConfigError) as caught:
            link_from_text(text, 1, 1)
        assert len(str(caught.value)) < 700


def test_a_toml_file_is_a_network_section_by_itself(write):
    path = write("slow.toml", 'link = "lte"\n[options]\nspread = 0\ntcp = "bbr"\n')

    assert parse_link(path) == LinkSpec("lte", {"spread": 0, "tcp": "bbr"})
    assert link_from_text(path, 1, 1).tcp == "bbr"
    assert link_from_text(f"{path}(tcp=none)", 1, 1).tcp == "none"


def test_an_experiment_file_is_the_link_of_its_clients(write):
    path = write(
        "exp.toml", '[run]\nseed = 3\n[network]\nlink = "3g"\noptions = { delay_ms = 9.0 }\n'
    )

    assert parse_link(path) == LinkSpec("3g", {"delay_ms": 9.0})
    assert parse_link(str(ROOT / "examples" / "quickstart.toml")).name == "3g"


def test_an_infinite_rate_survives_a_file(write):
    path = write("inf.toml", 'link = "constant"\noptions = { up_bps = inf, down_bps = 1e6 }\n')

    assert link_from_text(path, 1, 1).up.curve.rate_at(0) == float("inf")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("link = 3\n", "network.link: input should be a valid string, got 3"),
        ('lnk = "lte"\n', 'needs link = "...", or the keys of an experiment; did you mean'),
        ('link = "lte"\nopts = {}\n', "network.opts: unknown key; did you mean 'options'?"),
        ('link = "lt"\n', "did you mean 'lte'?"),
        ("[run]\nsed = 1\n", "run.sed: unknown key; did you mean 'seed'?"),
        ("link = \n", "not valid TOML"),
        ("", "needs link"),
    ],
)
def test_a_toml_file_with_a_fault_is_refused_with_its_place(write, text, words):
    path = write("bad.toml", text)

    with pytest.raises(ConfigError) as caught:
        link_from_text(path, 1, 1)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_comes_before_a_file_of_that_name(write, monkeypatch):
    path = write("lte", "0 1\n1 2\n")
    monkeypatch.chdir(Path(path).parent)

    assert parse_link("lte").name == "lte"
    assert parse_link("./lte").name == "trace"


def test_a_recording_is_replayed_from_its_beginning_both_ways(write):
    path = write("rec.txt", "0 1\n10 2\n20 3\n30 4\n")
    link = link_from_text(path, 5, 9)

    for way in ("up", "down"):
        assert [link.way(way).curve.rate_at(s) for s in (0, 10, 39)] == [1e6, 2e6, 4e6]
    mixed = link_from_text(f"{path}(down_bps=7e6, delay_ms=20, scale=2)", 5, 9)
    assert mixed.up.curve.rate_at(0) == 2e6
    assert mixed.down.curve.rate_at(0) == 7e6
    assert mixed.rtt_s == 0.04


def test_a_pair_of_recordings_is_a_link(write):
    up, down = write("a.up", "100\n200\n"), write("a.down", "50\n200\n")
    options = f"up_file={up}, down_file={down}, step_s=0.1, random_start=false"
    link = link_from_text(f"trace({options})", 1, 1)

    assert link.up.curve.rate_at(0) == 0
    assert link.down.curve.rate_at(0) == 120_000
    assert link_from_text(f"{up}(down_file={down})", 1, 1).down.curve.rate_at(0) == 120_000


def test_a_csv_file_needs_no_options_where_its_header_says_rate_and_unit(write):
    path = write("log.csv", "time_s,up_mbps,down_mbps\n0,1,8\n2,3,4\n")
    link = link_from_text(path, 1, 1)

    assert [link.up.curve.rate_at(s) for s in (0, 2)] == [1e6, 3e6]
    assert [link.down.curve.rate_at(s) for s in (0, 2)] == [8e6, 4e6]
    drive = write("drive.csv", "DL_bitrate,UL_bitrate,State\n5,1,D\n0,0,I\n6,2,D\n")
    assert link_from_text(drive, 1, 1).down.curve.rate_at(1) == 6e3


def test_a_csv_file_with_other_names_says_what_to_write(write):
    path = write("log.csv", "sent,got\n1,2\n3,4\n")

    with pytest.raises(ConfigError) as caught:
        link_from_text(path, 1, 1)
    assert f"Write {path}(up_column=..., down_column=...); there are sent, got" in str(caught.value)
    link = link_from_text(f"{path}(up_column=sent, down_column=got)", 1, 1)
    assert link.down.curve.rate_at(1) == 4e3
    assert link_from_text(f"{path}(up_column=sent, down_bps=1)", 1, 1).up.curve.rate_at(1) == 3e3


@pytest.mark.skipif(not RECORDED.is_dir(), reason=f"no recorded traces in {RECORDED}")
def test_every_recording_is_a_link():
    files = [one for one in os.listdir(RECORDED) if one != "README.md"]

    assert len(files) >= 15
    for file in files:
        link = link_from_text(str(RECORDED / file), 1, 1)
        assert took_s(link, "down") > 2.0
