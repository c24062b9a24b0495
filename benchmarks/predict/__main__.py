"""Prints the predictor's errors by family on published measurements: fitted on one half, tested on the other.

Run from the repository with `PYTHONPATH=build python -m benchmarks.predict --rows FILE [--json FILE] [--write]`. FILE
is a CSV with the columns that docs/prediction.md lists; columns may be missing.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.predict.cases import FAMILIES, Case, case_of
from benchmarks.predict.fitting import FEWEST, FamilyFit, fit_family
from benchmarks.predict.lanes import fit_lanes
from benchmarks.predict.printing import as_json, print_scores
from benchmarks.predict.rows import Row, read_rows
from benchmarks.predict.scoring import FamilyScores, score_family
from benchmarks.predict.speculation_cases import SpecCase, spec_case
from benchmarks.predict.speculation_model import SpecFit, fit_speculation
from benchmarks.predict.speculation_scoring import score_speculation
from benchmarks.predict.storing import PHYSICS_FILE, read_fits, write_fits


def main(argv: Sequence[str] | None = None) -> int:
    """Read, fit, score, print; 0 also when a goal is missed, since this is a measurement and no test."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.predict", description=__doc__)
    parser.add_argument("--rows", type=Path, required=True, help="CSV of published measurements")
    parser.add_argument("--json", type=Path, help="also write everything as JSON to this file (-: stdout, no table)")
    parser.add_argument("--quick", action="store_true", help="leave out the fits without a model or GPU")
    parser.add_argument("--write", action="store_true", help="fit on all rows and store the coefficients in engines/")
    arguments = parser.parse_args(argv)
    rows = read_rows(arguments.rows)
    cases, speculation, left = sort_rows(rows)
    if arguments.write:
        _write(cases, speculation, rows, arguments.rows)
    names, in_fit = split_of(rows)
    shipped = read_fits() if PHYSICS_FILE.is_file() else None
    scores = _scores(cases, in_fit, shipped[0] if shipped else {}, not arguments.quick)
    spec = score_speculation(
        speculation, lambda case: in_fit(case.row), shipped[1] if shipped else None, not arguments.quick
    )
    document = as_json(scores, spec, names, left, len(rows))
    if arguments.json is not None and str(arguments.json) != "-":
        arguments.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if str(arguments.json) == "-":
        print(json.dumps(document, indent=1))
    else:
        print_scores(scores, spec, names, left, len(rows))
    return 0


def sort_rows(rows: Sequence[Row]) -> tuple[list[Case], list[SpecCase], dict[str, list[str]]]:
    """Cases of the baseline families, cases of speculation, and the ids of all other rows by reason."""
    cases: list[Case] = []
    speculation: list[SpecCase] = []
    left: dict[str, list[str]] = {}
    for row in rows:
        found = spec_case(row) if row.text("kind") == "spec" else case_of(row)
        if isinstance(found, Case):
            cases.append(found)
        elif isinstance(found, SpecCase):
            speculation.append(found)
        else:
            left.setdefault(found, []).append(row.id)
    return cases, speculation, left


def split_of(rows: Sequence[Row]) -> tuple[tuple[str, str], Callable[[Row], bool]]:
    """Names of the halves, and whether a row is in the fitted one: by the column `split` when it parts the file, else
    by a hash of the configuration."""
    values = Counter(row.text("split") for row in rows)
    if "train" in values and len(values) > 1:
        return ("split train", "split holdout"), lambda row: row.text("split") == "train"
    return ("hash half 0", "hash half 1"), lambda row: row.half == 0


def _scores(
    cases: Sequence[Case], in_fit: Callable[[Row], bool], shipped: dict[str, FamilyFit], outs: bool
) -> list[FamilyScores]:
    found = []
    for family in FAMILIES:
        own = [case for case in cases if case.family == family]
        if own:
            print(f"{family}: {len(own)} rows", file=sys.stderr)
            found.append(score_family(family, own, lambda case: in_fit(case.row), shipped.get(family), outs))
    return found


def _write(cases: Sequence[Case], speculation: Sequence[SpecCase], rows: Sequence[Row], path: Path) -> None:
    families = {}
    for family in FAMILIES:
        own = [case for case in cases if case.family == family]
        if len(own) >= FEWEST:
            families[family] = fit_family(own)
    spec: SpecFit = fit_speculation(list(speculation))
    lanes = fit_lanes(cases, rows, families)
    write_fits(families, spec, lanes, path, len(cases) + len(speculation))


if __name__ == "__main__":
    raise SystemExit(main())
