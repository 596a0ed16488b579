"""What a device need not say: heartbeats while the server hears from it anyway.

The server's gate takes every request of a device as a sign of life (``fedsys/deploy/gate.py``).
Flower's heartbeats, every 20 s beside that, would be two thirds of what an idle device sends, and
behind an upload that fills a thin link they do not come through in time.
"""

from typing import Any

from fedsys.clock import WallClock

HEARTBEAT, QUESTION = "/SendNodeHeartbeat", "/PullMessages"
TRANSFERS = ("/PushObject", "/PullObject", "/GetFab")
HEARD_S = 20.0
"""A device that was heard of so long ago need not say that it is there. Flower's server believes it
for 60 s, and the next heartbeat is due 23 s later at most."""
QUESTION_S = 35.0
"""How long a device waits for the answer to a question that the server keeps for 25 s."""
TRANSFER_S = 90.0
"""How long it waits for the answer to a piece. Pieces take 10 s at the mean rate of a link, and
links fade. Flower waits 30 s; a connection that is dead is noticed by its kernel before."""


def quiet(kind: Any, beat: Any, clock: WallClock) -> Any:
    """Flower's signing interceptor ``kind``, answering needless heartbeats itself with ``beat``.

    ``beat`` makes the answer to a request.
    """

    class Quiet(kind):  # type: ignore[misc]
        """Signs and sends what has to be said."""

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self._heard_s = float("-inf")
            self._asking = 0

        def intercept(self, context: Any, call_next: Any) -> Any:
            """As the class above, except for heartbeats."""
            is_question = context.rpc_method.endswith(QUESTION)
            timeout = context.request.extensions["timeout"]
            if context.rpc_method.endswith(HEARTBEAT) and self._is_heard():
                return beat(context.request)
            if is_question:
                timeout["read"] = QUESTION_S
            if context.rpc_method.endswith(TRANSFERS):
                timeout["read"] = TRANSFER_S
            self._asking += is_question
            try:
                response = super().intercept(context, call_next)
            finally:
                self._asking -= is_question
            if response.status_code == 200:
                self._heard_s = clock.now_s()
            return response

        def _is_heard(self) -> bool:
            return self._asking > 0 or clock.now_s() - self._heard_s < HEARD_S

    return Quiet
