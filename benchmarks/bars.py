"""What every benchmark has in common: bars, their table, the files it writes, its exit status."""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

NAME_WIDTH = 90


@dataclass(frozen=True, slots=True)
class Bar:
    """``measured`` must not exceed ``bound``, or fall short of it where ``at_least``."""

    name: str
    bound: float
    measured: float
    at_least: bool = False

    @property
    def ok(self) -> bool:
        """Whether the bar is reached."""
        reached = self.measured >= self.bound if self.at_least else self.measured <= self.bound
        return bool(reached)

    def line(self) -> str:
        """The bar as a row of the table."""
        bound = f"{'>=' if self.at_least else '<='} {self.bound:.4g}"
        verdict = "ok  " if self.ok else "MISS"
        return f"{verdict} {self.name:{NAME_WIDTH}s} {self.measured:10.4g} {bound}"

    def as_json(self) -> dict[str, Any]:
        """The bar as results files have it."""
        return asdict(self) | {"measured": float(self.measured), "ok": self.ok}


def parser_for(doc: str, quick: str) -> argparse.ArgumentParser:
    """Options of every benchmark; ``quick`` says what its quick run leaves out."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--json", type=Path, help="write the figures here")
    return parser


def finish(bars: Sequence[Bar], found: Mapping[str, Any], json_path: Path | None) -> int:
    """Write ``found`` and the bars where asked; the exit status, 1 where a bar is missed."""
    if json_path:
        content = {**found, "rows": [bar.as_json() for bar in bars]}
        json_path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0 if all(bar.ok for bar in bars) else 1
