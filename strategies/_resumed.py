"""A run goes on where its folder's checkpoint says, whoever runs it."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from fedsys.errors import ConfigError
from fedsys.telemetry.runfolder import RunFolder
from fedsys.types import RoundRecord
from strategies._flower import RoundBudget


class Restorable(Protocol):
    """A grid that checkpoints have the state of."""

    def restore(self, state: Any) -> None:
        """Go on from ``state``."""
        ...


def resume(
    folder: RunFolder,
    strategy: RoundBudget,
    grid: Restorable | None = None,
    *,
    kept: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda state: state["strategy"],
) -> list[RoundRecord]:
    """Bring strategy, grid and records to the folder's checkpoint; the records up to it.

    ``kept`` is what of a checkpoint's state the strategy goes on with. ConfigError where the
    checkpoint is not one of this experiment.
    """
    checkpoint = folder.load_checkpoint()
    folder.truncate(0 if checkpoint is None else checkpoint.round)
    if checkpoint is None:
        return []
    records = list(folder.records())
    try:
        strategy.restore(checkpoint.tensors, kept(checkpoint.state), records)
        if grid is not None:
            grid.restore(checkpoint.state["grid"])
    except (KeyError, TypeError) as error:
        raise ConfigError(f"the checkpoint lacks {error}; start again in another folder") from error
    return records
