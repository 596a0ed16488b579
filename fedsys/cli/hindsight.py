"""The runs of hindsight: a grid of fixed plans, then schedules made of the best of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedsys.cli.axes import split_values
from fedsys.cli.batch import trials_of
from fedsys.cli.cells import Cell, Variant, cells_of
from fedsys.cli.scenes import Scene
from fedsys.codecs._chain import parse
from fedsys.errors import ConfigError
from fedsys.telemetry.comparison import Comparison, Row, compare
from fedsys.telemetry.hindsight import FIXED, TWO_PARTS, best_row, schedules

SCHEDULE = "two_parts"
EPOCHS = "1,2,4,8"
CODECS = "none,int8,topk(0.1)|int8,topk(0.03)|int8"


@dataclass(frozen=True, slots=True)
class Grid:
    """Every number of local epochs with every codec, which holds for both directions."""

    epochs: tuple[int, ...]
    codecs: tuple[str, ...]

    @classmethod
    def parse(cls, epochs: str, codecs: str) -> "Grid":
        """From the values of the command line, between commas."""
        numbers = split_values(epochs)
        if not all(number.isdecimal() and int(number) >= 1 for number in numbers):
            raise ConfigError(
                f"--oracle-epochs {epochs}: whole numbers of 1 or more, e.g. {EPOCHS}"
            )
        specs = split_values(codecs)
        try:
            for spec in specs:
                parse(spec)
        except ConfigError as error:
            raise ConfigError(f"--oracle-codecs: {error}") from error
        return cls(tuple(map(int, numbers)), tuple(specs))

    def plans(self) -> dict[str, tuple[int, str]]:
        """Label to epochs and codec."""
        return {
            f"{epochs} epoch{'s' if epochs > 1 else ''}, {codec}": (epochs, codec)
            for epochs in self.epochs
            for codec in self.codecs
        }

    def cells(self, scene: Scene) -> list[Cell]:
        """A run of every plan for every seed of the scene."""
        variants: list[Variant] = [
            (
                label,
                {
                    "strategy.name": "fixed",
                    "strategy.options": {"local_epochs": epochs},
                    "codec.uplink": codec,
                    "codec.downlink": codec,
                },
            )
            for label, (epochs, codec) in self.plans().items()
        ]
        return _cells(scene, variants)

    def schedule_cells(self, scene: Scene, rows: Sequence[Row]) -> list[Cell]:
        """A run of every schedule that ``rows``, the grid's own, make worth trying."""
        plans, variants = self.plans(), list[Variant]()
        for one in schedules(rows):
            parts = (plans[one.first], plans[one.second])
            options = {
                "switch_s": one.switch_s,
                "local_epochs": [epochs for epochs, _ in parts],
                "codecs": [codec for _, codec in parts],
            }
            label = f"{one.first}; from {one.switch_s:g} s on {one.second}"
            variants.append((label, {"strategy.name": SCHEDULE, "strategy.options": options}))
        return _cells(scene, variants)


def grid_rows(scene: Scene, cells: Sequence[Cell], comparison: Comparison) -> list[Row]:
    """The finished runs of ``cells``, judged by the comparison's own target."""
    trials = {label: runs for label, runs in trials_of(cells).items() if runs}
    if not trials or comparison.target is None:
        return []
    budget = scene.experiment.run.budget
    return list(compare(scene.name, comparison.target, trials, budget=budget).rows)


def oracles(fixed: Sequence[Row], parts: Sequence[Row]) -> dict[str, Row]:
    """The best of each kind, where any run of it reached the target."""
    best = {FIXED: best_row(fixed), TWO_PARTS: best_row(parts)}
    return {kind: row for kind, row in best.items() if row is not None}


def _cells(scene: Scene, variants: Sequence[Variant]) -> list[Cell]:
    seeds = len({cell.seed for cell in scene.cells})
    return cells_of(
        scene.experiment,
        variants,
        scene.folder / "oracle",
        seeds=seeds,
        what="oracle",
        scene=f"{scene.name}, oracle",
    )
