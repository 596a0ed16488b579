"""Why a server does not let a device in, said by the device itself."""

import datetime
from email.utils import parsedate_to_datetime
from typing import Any

REFUSED = "refused:"
"""Begins the line that a SuperNode prints, and that its supervisor looks for."""
TOLERATED_AHEAD_S = 5.0
TOLERATED_BEHIND_S = 300.0
"""What Flower's server allows between the signature's time and its own."""


def reason_for(server_date: str | None, now: datetime.datetime) -> str:
    """What a refusal (401) means, given the ``Date`` that came with it."""
    skew_s = _skew_s(server_date, now)
    if skew_s is not None and not -TOLERATED_BEHIND_S < skew_s < TOLERATED_AHEAD_S:
        where = "ahead of" if skew_s > 0 else "behind"
        return f"this device's clock is {abs(skew_s):.0f} s {where} the server's; set the clock"
    return "the server does not know this device's key, or has revoked it; enrol the device again"


def explained(kind: Any) -> Any:
    """Flower's signing interceptor, printing the reason of each refusal."""

    class Explained(kind):  # type: ignore[misc]
        """Signs, sends, and looks at the answer."""

        def intercept(self, context: Any, call_next: Any) -> Any:
            """As the class above, and a line on standard output for a 401."""
            response = super().intercept(context, call_next)
            if response.status_code == 401:
                now = datetime.datetime.now(datetime.UTC)
                print(REFUSED, reason_for(response.headers.get("date"), now), flush=True)
            return response

    return Explained


def _skew_s(server_date: str | None, now: datetime.datetime) -> float | None:
    """How far this machine's clock is ahead, to a second."""
    try:
        return (now - parsedate_to_datetime(server_date or "")).total_seconds()
    except (ValueError, TypeError):
        return None
