"""What nodes keep in ``context.state`` between messages: the latest in memory, the rest on disk.

Only nodes that took part have any, so what it costs does not depend on how many are registered.
"""

import pickle
import shutil
import tempfile
from collections import OrderedDict
from pathlib import Path

from flwr.app import RecordDict

KEPT_STATES = 1024


class NodeStates:
    """Node to its state; ``kept`` of them stay in memory."""

    def __init__(self, kept: int = KEPT_STATES) -> None:
        self._kept = kept
        self._latest: OrderedDict[int, bytes] = OrderedDict()
        self._spilled: set[int] = set()
        self._folder: Path | None = None

    def load(self, node_id: int) -> RecordDict | None:
        """A copy of the node's state; None if it has kept nothing."""
        data = self._latest.get(node_id)
        if data is None and node_id in self._spilled:
            data = self._path(node_id).read_bytes()
        state: RecordDict | None = None if data is None else pickle.loads(data)
        return state

    def save(self, node_id: int, state: RecordDict) -> None:
        """Replace the node's state; an empty one takes no room."""
        self._latest.pop(node_id, None)
        self._spilled.discard(node_id)
        if not state:
            return
        self._latest[node_id] = pickle.dumps(state, protocol=5)
        if len(self._latest) > self._kept:
            oldest, data = self._latest.popitem(last=False)
            self._path(oldest).write_bytes(data)
            self._spilled.add(oldest)

    def close(self) -> None:
        """Forget everything."""
        self._latest.clear()
        self._spilled.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _path(self, node_id: int) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="fedsys-states-"))
        return self._folder / str(node_id)
