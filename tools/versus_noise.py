"""Count false verdicts of `h2h versus`: compare a training script with itself many times, each time on new seeds.

    python tools/versus_noise.py --data input.txt --out FOLDER                   200 comparisons, five seeds a side
    python tools/versus_noise.py --data input.txt --out FOLDER --count 20 --workers 2

Every run is a process of its own, as in `h2h versus --noise`. Interrupted, it continues where it stopped. Prints the
number of each outcome and the exact 95 % interval of the rate of false verdicts.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from scipy.stats import binomtest

from headtohead.experiment.schemas import Findings, read_record
from headtohead.versus.comparison import run_comparison
from headtohead.versus.config import build_comparison
from headtohead.versus.findings import write_findings
from headtohead.versus.versions import collect_script_versions

SCRIPT = Path(__file__).resolve().parent.parent / "docs" / "examples" / "train_gpt.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="text file")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=200, help="comparisons")
    parser.add_argument("--seeds", type=int, default=5, help="seeds per side")
    parser.add_argument("--steps", type=int, default=30, help="training steps of each run")
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    words = [sys.executable, str(SCRIPT), "--data", str(arguments.data.resolve()), "--seed", "{seed}"]
    words += ["--steps", str(arguments.steps), "--eval-interval", str(arguments.steps), "--eval-batches", "4"]
    outcomes: Counter[str] = Counter()
    for index in range(arguments.count):
        folder = arguments.out / f"{index:04d}"
        if (folder / "findings.json").is_file():
            findings = read_record(folder / "findings.json", Findings)
        else:
            config = build_comparison(
                {
                    "metric": "val_loss",
                    "baseline": words,
                    "variants": {"repeated": words},
                    "is_noise": True,
                    "seeds": arguments.seeds,
                    "first_seed": index * 2 * arguments.seeds,
                },
                "versus_noise",
            )
            comparison = run_comparison(
                folder,
                config,
                directory=Path.cwd(),
                versions=collect_script_versions(),
                num_workers=arguments.workers,
                resume=True,
            )
            findings = write_findings(comparison, sys.argv)
        outcomes[findings.verdicts[0].outcome] += 1
        false = outcomes["helped"] + outcomes["hurt"]
        interval = binomtest(false, outcomes.total()).proportion_ci()
        print(
            f"{outcomes.total()} comparisons: {dict(outcomes)}; false verdicts {false / outcomes.total():.1%} "
            f"(95 % interval {interval.low:.1%} to {interval.high:.1%})",
            flush=True,
        )


if __name__ == "__main__":
    main()
