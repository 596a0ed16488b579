"""What is shipped: the wheel that people install and the bundle that Flower sends to devices."""

import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=ROOT)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    run(str(Path(sys.executable).with_name("flwr")), "build", "--app", str(ROOT), cwd=folder)
    return next(folder.glob("*.fab"))


def top_level(archive: Path) -> set[str]:
    return {name.split("/")[0] for name in zipfile.ZipFile(archive).namelist()}


def test_the_wheel_holds_the_four_packages_and_nothing_else_of_the_tree(wheel):
    info = f"fedsys-{PROJECT['project']['version']}.dist-info"
    assert top_level(wheel) == {"fedsys", "clients", "strategies", "netem", info}


def test_the_wheel_holds_every_file_of_the_four_packages(wheel):
    packed = set(zipfile.ZipFile(wheel).namelist())
    for package in ("fedsys", "clients", "strategies", "netem"):
        there = {p for p in (ROOT / package).rglob("*") if p.is_file() and p.suffix != ".pyc"}
        assert {p.relative_to(ROOT).as_posix() for p in there} <= packed


def test_the_bundle_holds_what_devices_run_and_neither_cli_nor_emulator(bundle):
    names = zipfile.ZipFile(bundle).namelist()
    assert top_level(bundle) == {
        "fedsys", "clients", "strategies", "pyproject.toml", "LICENSE", ".info",
    }  # fmt: skip
    assert not [name for name in names if name.startswith("fedsys/cli/")]


def test_the_licence_is_in_both(wheel, bundle):
    text = (ROOT / "LICENSE").read_bytes()
    assert b"Apache License" in text
    assert zipfile.ZipFile(bundle).read("LICENSE") == text
    licences = [n for n in zipfile.ZipFile(wheel).namelist() if n.endswith("/LICENSE")]
    assert [zipfile.ZipFile(wheel).read(name) for name in licences] == [text]


@pytest.mark.parametrize("shipped", ["wheel", "bundle"])
def test_both_flower_apps_start_from_the_unpacked_files_outside_of_the_checkout(
    shipped, tmp_path, request
):
    zipfile.ZipFile(request.getfixturevalue(shipped)).extractall(tmp_path)
    components = PROJECT["tool"]["flwr"]["app"]["components"]
    loads = "".join(
        f"import {module}; assert {module}.__file__.startswith(here), {module}.__file__\n"
        f"assert type({module}.{name}).__name__ == '{kind}'\n"
        for kind, path in (
            ("ServerApp", components["serverapp"]),
            ("ClientApp", components["clientapp"]),
        )
        for module, name in [path.split(":")]
    )
    code = f"import sys; here = {str(tmp_path)!r}; sys.path.insert(0, here)\n{loads}"
    run(sys.executable, "-c", code, cwd=tmp_path)


def test_the_command_of_the_wheel_starts(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    module, name = PROJECT["project"]["scripts"]["fedsys"].split(":")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.argv = ['fedsys', '--version']\n"
        f"import {module} as m; assert m.__file__.startswith({str(tmp_path)!r}); m.{name}()"
    )
    expected = f"fedsys {PROJECT['project']['version']}\n"
    assert run(sys.executable, "-c", code, cwd=tmp_path) == expected


def test_the_wheel_names_its_version_and_asks_for_no_exact_pin(wheel):
    name = next(n for n in zipfile.ZipFile(wheel).namelist() if n.endswith("/METADATA"))
    metadata = Parser().parsestr(zipfile.ZipFile(wheel).read(name).decode())
    assert metadata["Version"] == PROJECT["project"]["version"]
    for requirement in metadata.get_all("Requires-Dist"):
        assert "==" not in requirement.split(";")[0]
        assert ">=" in requirement
        assert "<" in requirement


def test_flower_accepts_the_run_config_keys_because_they_have_defaults():
    assert PROJECT["tool"]["flwr"]["app"]["config"] == {"experiment": "", "out": ""}
