"""Where a benchmark's figures come from: what every results file and page says of itself."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_CODE = ("fedsys", "netem", "clients", "strategies", "benchmarks/*.py")


def provenance() -> dict[str, str]:
    """Commit, date, command, machine in general words, and versions that matter."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    module = Path(sys.argv[0]).stem
    return {
        "commit": _git("rev-parse", "--short", "HEAD")
        + (" and changes" if _git("status", "--porcelain", "-uno", "--", *_CODE) else ""),
        "date": datetime.now(UTC).date().isoformat(),
        "command": " ".join([f"python -m benchmarks.{module}", *sys.argv[1:]]),
        "machine": f"{cores} cores, {platform.machine()}, {platform.system()}",
        "versions": ", ".join(
            [f"Python {platform.python_version()}"]
            + [f"{name} {version(name)}" for name in ("numpy", "torch", "constriction")]
        ),
    }


def source_lines(found: dict[str, str]) -> list[str]:
    """The same as a list for a page."""
    return [f"- {key}: `{value}`" for key, value in found.items()]


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=_ROOT)
    return done.stdout.strip() or ("unknown" if done.returncode else "")
