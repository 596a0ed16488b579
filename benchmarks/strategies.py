"""Who is soonest, in which scene? ``python -m benchmarks.strategies [--quick] [--seeds N]``.

Every strategy of ``strategies.toml`` in every scenario, with paired seeds, beside a grid of fixed
plans out of which hindsight takes the best; final accuracies, the foresight of ``fedsys plan``, and
what each part of ours is worth. Prints one row for each bar. Runs that are finished are kept in
--out and reused, the rest goes on, seed by seed, the scenarios that tell most first. Exit status 1
when a bar is missed.
"""

import sys
from pathlib import Path

from benchmarks.bars import finish, parser_for
from benchmarks.provenance import provenance
from benchmarks.strategies_bars import bars
from benchmarks.strategies_page import write_page
from benchmarks.strategies_study import Stopped, Study
from fedsys.cli.batch import batch_of
from fedsys.cli.execution import usable_cores


def main() -> int:
    """Run what is missing, print the bars, and say whether they are reached."""
    parser = parser_for(__doc__ or "", "two scenarios, four rounds, few strategies: any fault?")
    parser.add_argument(
        "--seeds", type=int, default=5, help="paired seeds; 5 of the dear ones at most"
    )
    parser.add_argument("--only", default="", help="scenarios whose names begin so")
    parser.add_argument("--workers", type=int, default=usable_cores())
    parser.add_argument("--out", type=Path, default=Path("runs/strategies"))
    parser.add_argument("--report", action="store_true", help="only judge what is finished")
    parser.add_argument("--page", type=Path, help="write the figures as Markdown here")
    options = parser.parse_args()
    study = Study(options.out, only=options.only, seeds=options.seeds, quick=options.quick)
    if not study.files:
        sys.exit(f"--only {options.only}: no scenario of that name")
    source = provenance()
    if not options.report:
        study.note_commit(source["commit"])
        with batch_of(options.workers) as batch:
            try:
                study.run(batch)
            except Stopped:
                return 130
    found = study.found()
    rows = list(bars(found))
    for row in rows:
        print(row.line())
    source |= {"runs made at": study.commits()}
    if options.page:
        write_page(options.page, source, rows, found)
    status = finish(rows, {"source": source} | found, options.json)
    return 0 if options.quick else status


if __name__ == "__main__":
    sys.exit(main())
