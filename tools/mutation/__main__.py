"""Command line of mutation testing."""

from __future__ import annotations

import argparse
import os
import random
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from . import __doc__ as package_doc
from .targets import MUTATION_TARGETS, MutationTarget
from .workspace import PROJECT_ROOT, copy_repository, run_in_copy

if TYPE_CHECKING:
    from cosmic_ray.work_item import WorkItem

    from .mutant_runner import MutantRunner

BLOCK_SIZE = 200
"""mutants per block; within a block, mutants of one module run in one process"""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make mutation", description=package_doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"default: all of {', '.join(MUTATION_TARGETS)}")
    parser.add_argument("--out", type=Path, default=PROJECT_ROOT / ".mutation", help="sessions and reports")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample")
    parser.add_argument("--limit", type=int, help="number of mutants to run now")
    parser.add_argument("--survivors", action="store_true", help="run the survivors again, after tests were added")
    parser.add_argument("--report", action="store_true", help="only print the results so far")
    parser.add_argument("--in-copy", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    """Run all targets one after the other, each in its own copy of the repository."""
    arguments = parse_arguments()
    if unknown_names := [name for name in arguments.targets if name not in MUTATION_TARGETS]:
        print(f"no target named {unknown_names[0]!r}; available: {', '.join(MUTATION_TARGETS)}", file=sys.stderr)
        return 2
    if arguments.in_copy:
        target = MUTATION_TARGETS[arguments.targets[0]]
        run_target(
            target, arguments.in_copy, arguments.seed, limit=arguments.limit, reruns_survivors=arguments.survivors
        )
        return 0
    for name in arguments.targets or MUTATION_TARGETS:
        folder = arguments.out.resolve() / name
        if not arguments.report:
            copy_repository(folder / "copy")
            options = ["--survivors"] if arguments.survivors else []
            options += ["--limit", str(arguments.limit)] if arguments.limit else []
            exit_code = run_in_copy(
                folder / "copy", name, "--in-copy", str(folder), "--seed", str(arguments.seed), *options
            )
            if exit_code:
                return exit_code
        if (folder / "session.sqlite").is_file():
            from .report import format_report

            print(f"\n{name}\n\n{format_report(folder / 'session.sqlite')}", flush=True)
    return 0


def run_target(target: MutationTarget, folder: Path, seed: int, *, limit: int | None, reruns_survivors: bool) -> None:
    """Run the remaining mutants of a target; the working folder is the copy."""
    from cosmic_ray.work_db import use_db

    from .line_coverage import LineCoverage
    from .mutant_runner import MutantRunner, find_affected_modules, install_import_hook, preload_modules
    from .session import update_session

    modules = sorted(path for pattern in target.modules for path in Path().glob(pattern))
    tests = sorted({str(path) for pattern in target.tests for path in Path().glob(pattern)})
    with use_db(str(folder / "session.sqlite")) as database:
        pending_mutants = shuffle_mutants(
            update_session(database, modules, target.sample, seed, reruns_survivors=reruns_survivors), seed
        )[:limit]
    if not pending_mutants:
        return
    coverage_file = folder / "coverage.json"
    run_in_fork(lambda: measure_coverage(modules, tests, folder, coverage_file))
    coverage = LineCoverage.read(coverage_file)
    print(f"{len(coverage.seconds)} tests, {sum(coverage.seconds.values()):.1f} s", flush=True)
    affected_modules = find_affected_modules(modules)
    install_import_hook()
    preload_modules(coverage, set().union(*affected_modules.values()))
    runner = MutantRunner(coverage, folder)
    runner.check_unchanged_code()
    for start in range(0, len(pending_mutants), BLOCK_SIZE):
        block = pending_mutants[start : start + BLOCK_SIZE]
        for module in sorted({get_mutated_module(item) for item in block}):
            mutants = [item for item in block if get_mutated_module(item) == module]
            run_in_fork(
                lambda module=module, mutants=mutants: run_mutants(module, mutants, runner, affected_modules[module])
            )
            runner.modification_time += 4 * len(mutants)  # as the child process did: two files for each mutant
        print(f"{min(start + BLOCK_SIZE, len(pending_mutants))} of {len(pending_mutants)} mutants", flush=True)
    runner.check_unchanged_code()


def run_in_fork(function: Callable[[], None]) -> None:
    """Call a function in a child process, whose imports do not affect this one; raise SystemExit if it fails."""
    if (pid := os.fork()) == 0:
        try:
            function()
        except BaseException:  # noqa: BLE001  nothing may return to the code of the parent
            traceback.print_exc()
            os._exit(1)
        sys.stdout.flush()
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        raise SystemExit(1)


def measure_coverage(modules: list[Path], tests: list[str], folder: Path, coverage_file: Path) -> None:
    """Measure which tests execute which lines, and write the result."""
    from .line_coverage import measure_line_coverage

    measure_line_coverage(modules, tests, folder).write(coverage_file)


def shuffle_mutants(items: Iterable[WorkItem], seed: int) -> list[WorkItem]:
    """Return the mutants in an order that depends only on the seed."""
    shuffled = sorted(items, key=lambda item: item.job_id)
    random.Random(seed).shuffle(shuffled)
    return shuffled


def get_mutated_module(item: WorkItem) -> Path:
    """Return the path of the module that a mutant changes."""
    return Path(item.mutations[0].module_path)


def run_mutants(module: Path, mutants: Sequence[WorkItem], runner: MutantRunner, affected_modules: set[str]) -> None:
    """Run some mutants of one module."""
    from cosmic_ray.work_db import use_db

    from .mutant_runner import preload_modules

    preload_modules(runner.coverage, affected_modules)
    with use_db(str(runner.scratch / "session.sqlite")) as database:
        for mutant in mutants:
            result = runner.run_mutant(mutant.mutations[0])
            database.set_result(mutant.job_id, result)
            if not result.is_killed:
                print(f"survived: {module}:{result.diff}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
