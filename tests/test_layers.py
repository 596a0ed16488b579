"""Who may import whom, and how long a file may be: the architecture, checked on the source text."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("fedsys", "clients", "strategies", "netem")
MAX_LINES = 400
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}

OURS = {
    "fedsys": {"fedsys"},
    "fedsys/cli": set(PACKAGES),
    "netem": {"fedsys", "netem"},
    "clients": {"fedsys", "clients"},
    "strategies": {"fedsys", "strategies"},
}
"""Folder to the packages of ours that its files may import; the longest folder that fits counts."""

OUTSIDE = {
    "flwr": (
        "fedsys/middleware/",
        "fedsys/engine/",
        "fedsys/_flwr_private.py",
        "fedsys/cli/",
        "fedsys/deploy/_flower.py",
        "fedsys/deploy/_replies.py",
        "fedsys/deploy/_state.py",
        "fedsys/deploy/_warm.py",
        "fedsys/deploy/control.py",
        "fedsys/deploy/grid.py",
        "fedsys/deploy/runtime.py",
        "netem/emulation.py",
        "netem/grid.py",
        "netem/sizes.py",
        "clients/client_app.py",
        "clients/cohort_app.py",
        "clients/session.py",
        "strategies/_buffered.py",
        "strategies/_deployment.py",
        "strategies/_flight.py",
        "strategies/_flower.py",
        "strategies/_round.py",
        "strategies/_simulated.py",
        "strategies/server_app.py",
    ),
    "ray": ("fedsys/engine/_flwr_ray.py",),
    "torch": ("clients/",),
    "sklearn": ("clients/tasks/",),
    "matplotlib": ("fedsys/telemetry/",),
    "typer": ("fedsys/cli/",),
    "rich": ("fedsys/cli/",),
    "starlette": ("netem/proxy/", "fedsys/deploy/spare.py"),
    "uvicorn": ("netem/proxy/", "fedsys/deploy/gate.py"),
    "cryptography": ("fedsys/deploy/",),
    "pydantic": ("fedsys/config/", "fedsys/telemetry/records.py", "clients/tasks/_load.py"),
}
"""Library to the only places that may import it."""


def sources() -> list[str]:
    files = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return sorted(path.relative_to(ROOT).as_posix() for path in files)


def imported(file: str) -> Iterator[str]:
    """Dotted names that ``file`` imports anywhere, by name in ``import_module`` included."""
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: a relative import"
            yield str(node.module)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            name = node.args[0]
            if isinstance(name, ast.Constant):
                yield f"by name: {name.value}"


def layer_of(file: str) -> set[str]:
    folder = max((f for f in OURS if file.startswith(f"{f}/")), key=len)
    return OURS[folder]


@pytest.mark.parametrize("file", sources())
def test_packages_of_ours_are_imported_in_one_direction_only(file):
    allowed = layer_of(file)
    wrong = [
        n for n in imported(file) if (top := n.split(".")[0]) in PACKAGES and top not in allowed
    ]
    assert not wrong, f"{file} imports {wrong}; allowed are {sorted(allowed)}"


@pytest.mark.parametrize("file", sources())
def test_a_library_is_imported_only_where_it_belongs(file):
    for name in imported(file):
        places = OUTSIDE.get(name.split(".")[0])
        assert places is None or file.startswith(places), f"{file} imports {name}"


def test_only_the_server_app_loads_other_packages_by_name():
    by_name = {
        (file, name) for file in sources() for name in imported(file) if name.startswith("by name")
    }
    assert by_name == {
        ("strategies/server_app.py", "by name: clients.server_side"),
        ("strategies/server_app.py", "by name: netem.emulation"),
    }


@pytest.mark.parametrize("file", sources())
def test_a_file_is_short_and_named_after_one_idea(file):
    lines = len((ROOT / file).read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_LINES
    assert Path(file).stem.strip("_") not in VAGUE_NAMES


@pytest.mark.parametrize("file", [f for f in sources() if f.endswith("__init__.py")])
def test_a_package_file_holds_a_docstring_and_nothing_that_runs(file):
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert ast.get_docstring(tree)
    rest = tree.body[1:]
    assert all(ast.unparse(node).startswith("__version__ = ") for node in rest)


@pytest.mark.parametrize("file", sources())
def test_a_file_says_in_its_docstring_what_it_decides(file):
    assert ast.get_docstring(ast.parse((ROOT / file).read_text(encoding="utf-8")))


def test_tests_are_no_packages_that_could_shadow_ours():
    assert not list((ROOT / "tests").rglob("__init__.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_tells_type_checkers_that_it_is_typed(package):
    assert (ROOT / package / "py.typed").exists()
