"""Running one command of the machine, and what becomes of its failure."""

import shlex
import subprocess
from collections.abc import Sequence

from fedsys.errors import DeployError

_LIMIT_S = 30.0


def attempt(argv: Sequence[str]) -> str | None:
    """Run ``argv`` to its end; the reason it failed, or None.

    It runs in a session of its own, so that Ctrl-C does not stop half of a set-up.
    """
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            cwd="/",
            start_new_session=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except FileNotFoundError:
        return f"no command {argv[0]}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return next(
        (line for line in said if "rror" in line or "denied" in line), (said or [""])[0]
    ) or (f"exit code {done.returncode}")


def execute(argv: Sequence[str]) -> None:
    """Run ``argv``; DeployError with its own words if it fails."""
    reason = attempt(argv)
    if reason is not None:
        raise DeployError(f"{shlex.join(argv)}: {reason}")
