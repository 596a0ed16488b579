"""Which scenes a comparison has: experiment files, or folders of them, with the same entries."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsys.cli.cells import Cell, plan_cells
from fedsys.config.load import load_experiment
from fedsys.config.schema import Experiment
from fedsys.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Scene:
    """One experiment with everything that is compared in it."""

    experiment: Experiment
    cells: Sequence[Cell]
    folder: Path

    @property
    def name(self) -> str:
        """The experiment's name."""
        return self.experiment.run.name


@dataclass(frozen=True, slots=True)
class Goal:
    """The target of a comparison, where the command line says so."""

    level: float | None = None
    share: float | None = None
    """Of the best metric that any strategy reaches in that scene."""

    @classmethod
    def parse(cls, text: str | None) -> "Goal":
        """``0.9`` is a level, ``98%`` a share of the best, no text leaves it to the file."""
        if text is None:
            return cls()
        number, is_share = text.strip().removesuffix("%"), text.strip().endswith("%")
        try:
            value = float(number) / (100 if is_share else 1)
        except ValueError:
            value = 0.0
        if not 0 < value <= 1:
            raise ConfigError(
                f"--target {text}: a level in (0, 1], e.g. 0.9, or a share of the best, e.g. 98%"
            )
        return cls(share=value) if is_share else cls(level=value)

    def settings(self) -> list[str]:
        """What the experiments need for it; a share is known only when all runs have ended."""
        if self.share is not None:
            return ["run.stop_at_target=false"]
        return [] if self.level is None else [f"run.target={self.level!r}"]


def find_files(paths: Sequence[Path]) -> list[Path]:
    """The files, and those ending in .toml of each folder, by name."""
    files: list[Path] = []
    for path in paths:
        found = sorted(path.glob("*.toml")) if path.is_dir() else [path]
        if not found:
            raise ConfigError(f"{path}: no experiment in it, which is a file ending in .toml")
        files += found
    return files


def load_scenes(
    paths: Sequence[Path],
    settings: Sequence[str],
    out: Path,
    *,
    seeds: int | None,
    strategies: Sequence[str],
    entries: Path | None,
) -> list[Scene]:
    """Every scene with its cells; ConfigError for what cannot be compared.

    ``entries`` is a file whose ``[[compare.entries]]`` take the place of the scenes' own.
    """
    given = None if entries is None else load_experiment(entries).compare.entries
    files = find_files(paths)
    scenes: list[Scene] = []
    for file in files:
        experiment = load_experiment(file, settings)
        if given is not None:
            compare = experiment.compare.model_copy(update={"entries": given})
            experiment = experiment.model_copy(update={"compare": compare})
        scene = experiment.run.name if len(files) > 1 else ""
        try:
            cells = plan_cells(
                experiment,
                out,
                seeds=seeds or experiment.compare.seeds,
                strategies=strategies,
                scene=scene,
                settings=settings,
            )
        except ConfigError as error:
            raise ConfigError(f"{file}: {error}" if scene else str(error)) from error
        scenes.append(Scene(experiment, cells, out / experiment.run.name))
    _check(scenes)
    return scenes


def _check(scenes: Sequence[Scene]) -> None:
    """Refuse two scenes of one name, and scenes with different baselines."""
    seen: set[str] = set()
    for scene in scenes:
        if scene.name in seen:
            raise ConfigError(f"run.name: two scenes are called '{scene.name}'")
        seen.add(scene.name)
    bases = dict.fromkeys(scene.cells[0].label for scene in scenes)
    if len(bases) > 1:
        raise ConfigError(
            f"the scenes have different baselines ({', '.join(bases)}); give --strategies a,b or "
            "--entries FILE, which hold for all of them"
        )
