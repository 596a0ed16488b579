"""What a comparison runs: every entry with every seed, each in its own folder, checked first."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsys.config.load import flattened, with_settings
from fedsys.config.schema import Entry, Experiment
from fedsys.errors import ConfigError
from fedsys.registry import available, nearest
from fedsys.telemetry.runfolder import RunFolder

_RESERVED = ("run.seed", "run.name", "run.target", "compare")
"""Set by the comparison itself, so that its runs can be compared."""
_LONGEST_SLUG = 60
MOST_SEEDS = 10_000


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a comparison."""

    label: str
    seed: int
    experiment: Experiment
    path: Path
    scene: str = ""
    """The scene that it belongs to, where there are several."""

    @property
    def title(self) -> str:
        """What people see of it."""
        scene = f"{self.scene}: " if self.scene else ""
        return f"{scene}{self.label}, seed {self.seed}"

    @property
    def expected_cost(self) -> int:
        """Client trainings it may take; a guess that orders the queue."""
        run = self.experiment.run
        return run.budget.rounds * self.experiment.cohort.count(self.experiment.partition.clients)


Variant = tuple[str, Mapping[str, Any]]
"""A label, and the dotted keys that differ from the experiment."""


def plan_cells(
    experiment: Experiment,
    out: Path,
    *,
    seeds: int,
    strategies: Sequence[str] = (),
    scene: str = "",
    settings: Sequence[str] = (),
) -> list[Cell]:
    """Cells in the order of entries, then seeds; seed s of every entry is run.seed + s.

    Raises ConfigError, with nothing changed on the disk, for an entry that cannot be run, that says
    otherwise than ``settings`` of the command line, or a folder that holds something else.
    """
    variants = chosen_variants(experiment, strategies, settings)
    for label, changes in variants:
        _check_keys(label, changes)
    return cells_of(experiment, variants, out / experiment.run.name, seeds=seeds, scene=scene)


def require_not_overridden(settings: Sequence[str], keys: Iterable[str], what: str) -> None:
    """Raise ConfigError for a ``--set key=value`` that would have no effect beside ``keys``."""
    for setting in settings:
        given = setting.partition("=")[0].strip()
        for key in keys:
            if given == key or given.startswith(f"{key}."):
                raise ConfigError(f"--set {given}: {what} sets {key} itself; change it there")


def cells_of(
    experiment: Experiment,
    variants: Sequence[Variant],
    folder: Path,
    *,
    seeds: int,
    what: str = "compare entry",
    scene: str = "",
) -> list[Cell]:
    """Every variant with every seed, below ``folder``; raises as ``plan_cells``."""
    _check_labels([label for label, _ in variants], what)
    cells = []
    for label, changes in variants:
        for seed in range(experiment.run.seed, experiment.run.seed + seeds):
            name = slug(label)
            settings = {**changes, "run.seed": seed, "run.name": name, "compare": {}}
            cell = with_settings(experiment, settings, f"{what} '{label}'")
            path = folder / f"{name}-{seed}"
            RunFolder.check(path, cell, resume=True)
            cells.append(Cell(label, seed, cell, path, scene))
    return cells


def slug(label: str) -> str:
    """The label as a file name: ``FedAvg (fp32)`` -> ``fedavg-fp32``; a long one ends in digits."""
    name = re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-.") or "entry"
    if len(name) <= _LONGEST_SLUG:
        return name
    digest = hashlib.blake2b(label.encode(), digest_size=4).hexdigest()
    return f"{name[: _LONGEST_SLUG - 9].rstrip('-.')}-{digest}"


def chosen_entries(experiment: Experiment, strategies: Sequence[str]) -> list[Entry]:
    """The file's entries, or those of the command line: labels, or names of strategies."""
    by_slug = {slug(entry.label): entry for entry in experiment.compare.entries}
    if not strategies:
        if not by_slug:
            raise ConfigError("nothing to compare: give [[compare.entries]] or --strategies a,b")
        return list(experiment.compare.entries)
    chosen = []
    for name in strategies:
        if slug(name) in by_slug:
            chosen.append(by_slug[slug(name)])
        elif ":" in name or name in available("strategies"):
            chosen.append(_entry_for(experiment, name))
        else:
            allowed = [entry.label for entry in by_slug.values()] + available("strategies")
            raise ConfigError(
                f"--strategies: no entry or strategy '{name}'; {nearest(name, allowed)}"
            )
    return chosen


def chosen_variants(
    experiment: Experiment, strategies: Sequence[str], settings: Sequence[str]
) -> list[Variant]:
    """The chosen entries by their dotted keys, none of which ``--set`` sets as well."""
    variants: list[Variant] = []
    for entry in chosen_entries(experiment, strategies):
        changes = flattened(entry.set)
        require_not_overridden(settings, changes, f"compare entry '{entry.label}'")
        variants.append((entry.label, changes))
    return variants


def _entry_for(experiment: Experiment, name: str) -> Entry:
    """A strategy by its name; the file's options are for the file's own strategy."""
    settings: dict[str, Any] = {"strategy.name": name}
    if name != experiment.strategy.name:
        settings["strategy.options"] = {}
    return Entry(label=name, set=settings)


def _check_labels(labels: Sequence[str], what: str) -> None:
    seen: dict[str, str] = {}
    for label in labels:
        name = slug(label)
        if name in seen:
            raise ConfigError(
                f"{what}: '{seen[name]}' and '{label}' would share the folder '{name}'; give "
                "each a label of its own"
            )
        seen[name] = label


def _check_keys(label: str, changes: Iterable[str]) -> None:
    for key in changes:
        if key in _RESERVED or key.startswith("compare."):
            raise ConfigError(
                f"compare entry '{label}': {key} is the same for all; set it in the file"
            )
