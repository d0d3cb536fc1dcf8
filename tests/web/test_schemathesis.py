"""schemathesis sends valid and invalid requests to a real server; none causes a server error.

The server is complete. Long operations are limited by the server itself: both training slots are occupied by sleeping
processes, so training requests are validated and then rejected.
"""

import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import status_code_conformance

from headtohead.web import training_process

from .conftest import HOSTILE, write_experiment, write_verdict

EXAMPLES = 12
"""of each operation, beside the cases that follow from the description itself"""
SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]
MODELS = st.sampled_from(["run/tiny/baseline/0", "run/tiny/alibi/0", "run/tiny/alibi/1", "pretrained/../x"])
NAMES = st.sampled_from(["done", "stopped", "tiny", "..", "asleep", HOSTILE])
KNOWN = {
    "model": MODELS,
    "checkpoint": st.sampled_from(["after", "before", "checkpoint-000006", ".."]),
    "text": st.sampled_from(["the people will", "<b>", " "]),
    "compare_to": MODELS | st.none(),
    "models": st.lists(MODELS, min_size=1, max_size=2),
    "strategies": st.sampled_from([["greedy"], ["top-p=0.9", "beam=2"], ["nonsense"], ["top-k=0"]]),
    "generated_ids": st.lists(st.integers(0, 20), max_size=3),
    "recipe": st.just("mine.toml"),
    "name": st.sampled_from(["new", "done", "a/b"]),
    "settings": st.dictionaries(
        st.sampled_from(["training.budget", "seeds", "model.position", "plugins", "data.source", "a.b", "="]),
        st.sampled_from(["5", '"x"', "[[[", "1e999", "/etc/passwd", "nan", ""]),
        min_size=1,
    ),
}
"""names that the server knows, which nobody would find by chance"""


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> Path:
    result = tmp_path / "runs"
    shutil.copytree(trained, result)
    write_verdict(write_experiment(result / "done", finished=4))
    write_experiment(result / "stopped")
    for name in ("first-place", "second-place"):
        training_process._launch_process(result, name, SLEEPER)  # the server's fixture ends what is left
    return result


@pytest.fixture
def described(server: Callable[[], tuple[Any, int]], runs: Path) -> Any:
    """Return the API schema of a real server."""
    _, port = server()
    schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{port}/api/openapi.json")
    schema.config.generation.update(deterministic=True, max_examples=EXAMPLES)

    @schema.hook
    def flatmap_path_parameters(context: Any, path_parameters: Any) -> st.SearchStrategy[Any]:
        known = st.fixed_dictionaries({"name": NAMES}) if path_parameters else st.just(path_parameters)
        return known | st.just(path_parameters)

    @schema.hook
    def flatmap_body(context: Any, body: Any) -> st.SearchStrategy[Any]:
        if not isinstance(body, dict):
            return st.just(body)
        # A file as it is would be estimated again and again, with real steps.
        keys = {*body, "settings"} if "recipe" in body else {*body}
        known = st.fixed_dictionaries({key: KNOWN[key] for key in sorted(keys & KNOWN.keys())})
        return known.map(lambda one: {**body, **one}) | st.just(body)

    return schema


SETTINGS = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)


def test_schemathesis_finds_no_server_error(described: Any) -> None:
    """Test each operation of the schema with valid and with invalid input."""
    counter = Counter[str]()
    for result in described.get_all_operations():
        operation = result.ok()
        for mode in GenerationMode:

            @SETTINGS
            @given(case=operation.as_strategy(generation_mode=mode))
            def send_case(case: schemathesis.Case) -> None:
                response = case.call_and_validate(checks=[not_a_server_error, status_code_conformance], timeout=240)
                counter[f"{case.method} {case.path} {response.status_code // 100}"] += 1

            try:
                send_case()
            except Unsatisfiable:
                assert mode is GenerationMode.NEGATIVE, "an operation that takes nothing cannot be asked wrongly"
    assert {item.rpartition(" ")[0] for item in counter} == {
        f"{method.upper()} {path}" for path, by in described.raw_schema["paths"].items() for method in by
    }
    models = ("POST /api/attention", "POST /api/playground/next", "POST /api/playground/generate")
    for path in ("GET /api/experiments/{name}", *models):
        assert counter[f"{path} 2"] and counter[f"{path} 4"], f"{path}: some were answered and some refused ({counter})"
