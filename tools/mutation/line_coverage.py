"""Which tests execute which lines, how long each test takes, and which modules the tests import."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import coverage
import pytest

PYTEST_OPTIONS = (
    *("-q", "--tb=no", "--assert=plain", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # plugins are imported before pytest starts
)


@dataclass
class LineCoverage:
    """Tests by the lines that they execute."""

    seconds: dict[str, float] = field(default_factory=dict)
    """duration of each test with coverage measurement, in the order of the test run"""
    tests: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    """tests by module and line"""
    imported: list[str] = field(default_factory=list)
    """names of the imported modules in the order of their import"""

    def select_tests(self, module: str, lines: range) -> list[str]:
        """Return the tests that execute one of these lines, the fastest first."""
        tests_by_line = self.tests.get(module, {})
        tests = {test for line in lines for test in tests_by_line.get(line, ()) if test}
        return sorted(tests, key=lambda test: self.seconds[test])

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> LineCoverage:
        raw = json.loads(path.read_text(encoding="utf-8"))
        tests_by_module = {
            module: {int(line): tests for line, tests in tests_by_line.items()}
            for module, tests_by_line in raw["tests"].items()
        }
        return cls(raw["seconds"], tests_by_module, raw["imported"])


class _TestRecorder:
    """A pytest plugin that labels measured lines with the test that executes them."""

    def __init__(self, measurement: coverage.Coverage, result: LineCoverage) -> None:
        self._measurement, self._result = measurement, result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._measurement.switch_context(item.nodeid)
        start_time = time.perf_counter()
        try:
            return (yield)
        finally:
            self._result.seconds[item.nodeid] = round(time.perf_counter() - start_time, 4)


def measure_line_coverage(modules: Sequence[Path], tests: Sequence[str], scratch: Path) -> LineCoverage:
    """Run the tests once and return what they execute; raise SystemExit if one of them fails."""
    result = LineCoverage()
    measurement = coverage.Coverage(
        data_file=None, include=[str(path.resolve()) for path in modules], config_file=False, messages=False
    )
    measurement.start()
    exit_code = pytest.main(
        [*PYTEST_OPTIONS, f"--basetemp={scratch / 'tests'}", *tests], plugins=[_TestRecorder(measurement, result)]
    )
    measurement.stop()
    if exit_code:
        raise SystemExit(f"the tests fail without a mutation (pytest exit code {int(exit_code)})")
    data = measurement.get_data()
    for path in modules:
        contexts = data.contexts_by_lineno(str(path.resolve()))
        result.tests[str(path)] = {line: [test for test in names if test] for line, names in contexts.items()}
    result.imported = list(sys.modules)
    return result
