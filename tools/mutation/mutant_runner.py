"""Run the tests of one mutant after the other, each in a fork of a process that has imported what they need."""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grimp
import pytest
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkerOutcome, WorkResult

from .line_coverage import PYTEST_OPTIONS, LineCoverage

MAX_CPU_FACTOR = 5
"""a mutant may take this many times the CPU time of its tests"""
MIN_CPU_SECONDS = 20
"""CPU time that every mutant may take in addition"""
MAX_WALL_FACTOR = 30
"""a mutant may take this many times the wall time of its tests, because the machine may be busy"""
MIN_WALL_SECONDS = 60
"""wall time that every mutant may take in addition"""
MAX_MEMORY_BYTES = 6 << 30
EXIT_CODES = {0: TestOutcome.SURVIVED, 1: TestOutcome.KILLED}


def find_affected_modules(modules: Sequence[Path]) -> dict[Path, set[str]]:
    """Return the names of each mutated module and of all modules that import it, directly or indirectly."""
    graph = grimp.build_graph("headtohead", cache_dir=None)  # its threads do not exist in forked processes
    module_names = {path: ".".join(path.with_suffix("").parts[1:]).removesuffix(".__init__") for path in modules}
    lazy_modules = {"headtohead"}  # it imports its names on first access
    return {path: ({name} | graph.find_downstream_modules(name)) - lazy_modules for path, name in module_names.items()}


def preload_modules(coverage: LineCoverage, affected_modules: set[str]) -> None:
    """Import what the tests import, except modules that a mutation affects."""
    for name in coverage.imported:
        components = name.split(".")
        packages = {".".join(components[:length]) for length in range(1, len(components) + 1)}
        if not packages & affected_modules and components[0] not in ("tests", "conftest", "tools"):
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    if loaded := affected_modules & set(sys.modules):
        raise SystemExit(f"imported before it is mutated: {', '.join(sorted(loaded))}")
    gc.collect()
    gc.freeze()


def install_import_hook() -> None:
    """Install the import hook of the tests, before modules are imported."""
    conftest = importlib.util.spec_from_file_location("mutation_conftest", "tests/conftest.py")
    assert conftest is not None and conftest.loader is not None
    conftest.loader.exec_module(importlib.util.module_from_spec(conftest))


@dataclass
class MutantRunner:
    """Applies mutations and runs tests."""

    coverage: LineCoverage
    scratch: Path
    modification_time: int = field(default_factory=lambda: int(time.time()), init=False)
    """modification time of the module that was written last"""

    def run_mutant(self, mutation: MutationSpec) -> WorkResult:
        """Apply a mutation, run the tests that execute it, and restore the module; return whether a test fails."""
        path = Path(mutation.module_path)
        original = path.read_text(encoding="utf-8")
        operator = get_operator(mutation.operator_name)(**mutation.operator_args)
        mutated = mutate_code(original, operator, mutation.occurrence)
        if mutated is None:
            return WorkResult(worker_outcome=WorkerOutcome.NO_TEST, test_outcome=TestOutcome.INCOMPETENT)
        lines = range(mutation.start_pos[0], mutation.end_pos[0] + 1)
        selected_tests = self.coverage.select_tests(str(path), lines)
        all_tests = sorted(self.coverage.seconds, key=lambda test: self.coverage.seconds[test])
        try:
            self._write_module(path, mutated)
            outcome, output = self.run_tests(selected_tests or all_tests)
        finally:
            self._write_module(path, original)
        return WorkResult(
            worker_outcome=WorkerOutcome.NORMAL,
            test_outcome=outcome,
            output=output,
            diff=_format_diff(original, mutated),
        )

    def _write_module(self, path: Path, source: str) -> None:
        """Write a module with a new modification time, so that no bytecode of an earlier mutant is used."""
        self.modification_time += 2
        path.write_text(source, encoding="utf-8")
        os.utime(path, (self.modification_time, self.modification_time))

    def check_unchanged_code(self) -> None:
        """Raise SystemExit if the tests fail without a mutation, in which case every mutant would count as killed."""
        outcome, output = self.run_tests(list(self.coverage.seconds))
        if outcome is not TestOutcome.SURVIVED:
            raise SystemExit(f"the tests fail without a mutation:\n{output}")

    def run_tests(self, tests: Sequence[str]) -> tuple[TestOutcome, str]:
        """Run tests in a forked process up to the first failure; return the outcome and the end of the output."""
        log = self.scratch / "output.txt"
        usual_seconds = sum(self.coverage.seconds[test] for test in tests)
        max_cpu_seconds = int(MIN_CPU_SECONDS + MAX_CPU_FACTOR * usual_seconds)
        pid = os.fork()
        if not pid:
            _run_in_child(tests, self.scratch, log, max_cpu_seconds)
        deadline = time.monotonic() + MIN_WALL_SECONDS + MAX_WALL_FACTOR * usual_seconds
        status = None
        while status is None:
            ended_pid, wait_status = os.waitpid(pid, os.WNOHANG)
            if ended_pid:
                status = wait_status
            elif time.monotonic() > deadline:
                os.killpg(pid, signal.SIGKILL)
                _, status = os.waitpid(pid, 0)
            else:
                time.sleep(0.01)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # processes that the tests left behind
        output = log.read_text(encoding="utf-8", errors="replace")[-2000:]
        if os.WIFSIGNALED(status):
            return TestOutcome.KILLED, f"ended by signal {os.WTERMSIG(status)}\n{output}"
        return EXIT_CODES.get(os.WEXITSTATUS(status), TestOutcome.INCOMPETENT), output


def _run_in_child(tests: Sequence[str], scratch: Path, log: Path, cpu_seconds: int) -> None:
    """Run the tests and exit with the exit code of pytest."""
    exit_code = 99
    try:
        os.setpgid(0, 0)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(descriptor, number)
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
        resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
        sys.argv = ["pytest"]
        exit_code = int(pytest.main([*PYTEST_OPTIONS, "-x", f"--basetemp={scratch / 'tests'}", *tests]))
    except BaseException:  # noqa: BLE001  nothing may return to the code of the parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)


def _format_diff(original: str, mutated: str) -> str:
    """Return the changed lines; cosmic-ray mutates one token."""
    line_pairs = enumerate(zip(original.splitlines(), mutated.splitlines(), strict=False), start=1)
    changed_lines = [(number, before, after) for number, (before, after) in line_pairs if before != after]
    return "\n".join(f"{number}: {before.strip()}  ->  {after.strip()}" for number, before, after in changed_lines[:3])
