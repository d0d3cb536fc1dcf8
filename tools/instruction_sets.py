"""Measure how results depend on the vector instructions of the processor.

    python -m tools.instruction_sets --out FOLDER                       speeches-decoder, three seeds, 100 steps
    python -m tools.instruction_sets --out FOLDER --set model.layers=4

Runs the same experiment once for each limit on the instructions that oneDNN, ATen and MKL may use, in processes of its
own, and prints what changes against the run without limits. Interrupted, it continues where it stopped.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headtohead.child_process import PYTHON_COMMAND
from headtohead.experiment.schemas import Findings, read_record
from headtohead.verdict.record import Verdict

RECIPE = "speeches-decoder"
DEFAULT_SETTINGS = ('training.budget="100 steps"', "model.layers=2")
INSTRUCTION_LIMITS: dict[str, dict[str, str]] = {
    "no limit": {},
    "no limit, repeated": {},
    "ONEDNN_MAX_CPU_ISA=AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    "ONEDNN_MAX_CPU_ISA=SSE41": {"ONEDNN_MAX_CPU_ISA": "SSE41"},
    "ATEN_CPU_CAPABILITY=avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "ATEN_CPU_CAPABILITY=default": {"ATEN_CPU_CAPABILITY": "default"},
    "MKL_CBWR=AVX2": {"MKL_CBWR": "AVX2"},
    "MKL_CBWR=COMPATIBLE": {"MKL_CBWR": "COMPATIBLE"},
    "all: AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "AVX2"},
    "all: lowest": {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"},
}
"""environment variables by description; the first entry is the reference"""
TABLE_HEADERS = (
    *("limit", "runs with equal weights", "perplexity of a run", "effect, in half widths of its interval"),
    *("width of the interval", "equal outcomes"),
)


@dataclass(frozen=True)
class ResultDifferences:
    """How the results of an experiment differ from those of the reference."""

    equal_runs: int
    runs: int
    max_score_change: float
    """largest relative change of the perplexity of a run"""
    max_effect_shift: float
    """largest shift of an effect, relative to the half width of its interval in the reference"""
    max_width_change: float
    """largest relative change of the width of an interval"""
    equal_outcomes: int
    outcomes: int


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.instruction_sets",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the experiments")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=f"default: {DEFAULT_SETTINGS}")
    arguments = parser.parse_args()
    print(f"| {' | '.join(TABLE_HEADERS)} |\n|{'---|' * len(TABLE_HEADERS)}", flush=True)
    for name, variables in INSTRUCTION_LIMITS.items():
        folder = arguments.out / name.replace(" ", "-").replace(":", "")
        run_experiment(folder, variables, arguments.seeds, arguments.set or DEFAULT_SETTINGS)
        print(format_table_row(name, compare_experiments(arguments.out / "no-limit", folder)), flush=True)
    return 0


def run_experiment(folder: Path, variables: dict[str, str], num_seeds: int, settings: Sequence[str]) -> None:
    """Run the experiment in processes with these environment variables, unless it is finished."""
    if (folder / "report.html").is_file():
        return
    options = [option for setting in settings for option in ("--set", setting)]
    command = ["run", RECIPE, "--seeds", str(num_seeds), "--workers", "1", "--device", "cpu", *options]
    environment = {name: value for name, value in os.environ.items() if name not in INSTRUCTION_LIMITS["all: lowest"]}
    subprocess.run(
        [*PYTHON_COMMAND, "-m", "headtohead.cli", *command, "--out", str(folder), "--resume"],
        env=environment | variables,
        stdout=subprocess.DEVNULL,
        check=True,
    )


def compare_experiments(reference: Path, folder: Path) -> ResultDifferences:
    """Compare weights, scores and verdicts of two experiments."""
    reference_findings, findings = (read_record(path / "findings.json", Findings) for path in (reference, folder))
    verdict_pairs = list(zip(list_verdicts(reference_findings), list_verdicts(findings), strict=True))
    weight_files = [path.relative_to(reference) for path in reference.glob("*/seed-*/model.safetensors")]
    score_changes = [
        abs(score / expected_score - 1)
        for variant, by_split in reference_findings.scores.items()
        for split, scores in by_split.items()
        for (_, expected_score), (_, score) in zip(scores, findings.scores[variant][split], strict=True)
    ]
    return ResultDifferences(
        equal_runs=sum((reference / path).read_bytes() == (folder / path).read_bytes() for path in weight_files),
        runs=len(weight_files),
        max_score_change=max(score_changes),
        max_effect_shift=max(
            abs(verdict.effect - expected.effect) / get_half_width(expected) for expected, verdict in verdict_pairs
        ),
        max_width_change=max(
            abs(get_half_width(verdict) / get_half_width(expected) - 1) for expected, verdict in verdict_pairs
        ),
        equal_outcomes=sum(expected.outcome == verdict.outcome for expected, verdict in verdict_pairs),
        outcomes=len(verdict_pairs),
    )


def list_verdicts(findings: Findings) -> list[Verdict]:
    """Return the verdicts on all held-out texts."""
    return [*findings.verdicts, *(verdict for verdicts in findings.other_verdicts.values() for verdict in verdicts)]


def get_half_width(verdict: Verdict) -> float:
    """Return half the width of a verdict's interval."""
    low, high = verdict.interval
    return (high - low) / 2


def format_table_row(name: str, differences: ResultDifferences) -> str:
    """Return the table row of an instruction limit."""
    cells = (
        name,
        f"{differences.equal_runs} of {differences.runs}",
        f"{100 * differences.max_score_change:.2g} %",
        f"{100 * differences.max_effect_shift:.2g} %",
        f"{100 * differences.max_width_change:.2g} %",
        f"{differences.equal_outcomes} of {differences.outcomes}",
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
