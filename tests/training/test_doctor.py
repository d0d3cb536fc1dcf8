"""The doctor report: extras, hub, browser, and the advice of each check."""

from __future__ import annotations

import json
import sys
import threading
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import torch

from headtohead.training.hardware import doctor
from headtohead.training.hardware.devices import select_device
from headtohead.training.hardware.doctor import DoctorReport
from headtohead.training.hardware.precision import Bfloat16Support

ROOT = Path(__file__).parents[2]


def test_extras_match_the_project_file() -> None:
    extras = doctor.list_extras_with_versions()
    if not extras:
        pytest.skip("headtohead is not installed as a package here, only importable")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras) == set(project["optional-dependencies"]) - {"all"}
    assert set(extras["serve"]) == {"fastapi", "uvicorn"}


def test_extras_of_a_missing_package_are_empty() -> None:
    assert doctor.list_extras_with_versions("no-such-package-anywhere") == {}


def test_a_missing_package_of_an_extra_has_no_version() -> None:
    # At least one package of pytest's extras is not installed in any environment of this project.
    extras = doctor.list_extras_with_versions("pytest")
    assert extras
    assert None in extras["dev"].values()


class _OkHandler(BaseHTTPRequestHandler):
    status = 200

    def do_HEAD(self) -> None:
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


class _ForbiddenHandler(_OkHandler):
    status = 403


@pytest.fixture(params=[_OkHandler, _ForbiddenHandler])
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), request.param)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def test_a_hub_that_responds_with_any_status_is_reachable(server: str, online: None) -> None:
    assert doctor.is_hub_reachable(server, timeout_seconds=10) is True


def test_a_hub_that_does_not_respond_is_not_reachable(online: None) -> None:
    closed = HTTPServer(("127.0.0.1", 0), _OkHandler)
    address = f"http://127.0.0.1:{closed.server_port}"
    closed.server_close()
    assert doctor.is_hub_reachable(address, timeout_seconds=10) is False


def test_offline_mode_skips_the_request(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert doctor.is_hub_reachable(server) is None


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> DoctorReport:
    return doctor.inspect_machine(tmp_path_factory.mktemp("runs") / "not" / "yet" / "there", check_hub=lambda: None)


def test_the_report_is_json_serializable(report: DoctorReport) -> None:
    data = json.loads(json.dumps(report.to_dict()))
    assert data == report.to_dict() | {"checks": data["checks"]}
    assert data["device"] == select_device("auto").type
    assert data["num_cores"] >= 1
    assert 0 < data["memory_free"] <= data["memory_total"]
    assert data["disk_free"] > 0
    assert data["versions"]["torch"] == torch.__version__
    assert data["versions"]["python"] == sys.version.split()[0]
    assert data["bfloat16"]["status"] in {"works", "works with workaround", "no"}


def test_every_check_has_a_value_and_advice(report: DoctorReport) -> None:
    names = [check.name for check in report.checks]
    expected = "device cores memory disk versions extras bfloat16 hub"
    assert names == [*expected.split(), "token cache"]
    assert all(check.value and check.advice for check in report.checks)


@pytest.mark.parametrize(
    ("name", "change", "is_ok", "expected_advice"),
    [
        ("cores", {"num_cores": 2, "num_threads": 3}, False, "OMP_NUM_THREADS=1"),
        ("cores", {"num_cores": 2, "num_threads": 2}, True, "one per core"),
        ("memory", {"memory_free": 2**30}, False, "--workers 1"),
        ("memory", {"memory_free": 2**33}, True, "enough"),
        ("disk", {"disk_free": 2**20}, False, "--out"),
        ("disk", {"disk_free": 2**40}, True, "enough"),
        ("token cache", {"cache_errors": None}, True, "--deep"),
        ("token cache", {"cache_errors": {"a": None}}, True, "nothing to do"),
        ("token cache", {"cache_errors": {"a": None, "b": "split0.text has changed"}}, False, "remove these folders"),
        ("versions", {"versions": {"headtohead": None}}, False, "pip install -e ."),
        ("versions", {"versions": {"headtohead": "1.2.3"}}, True, "bug reports"),
        ("extras", {"extras": {}}, False, "pip install -e ."),
        ("extras", {"extras": {"a": {"x": "1"}, "b": {"y": None}}}, True, "pip install 'headtohead[b]'"),
        ("extras", {"extras": {"a": {"x": "1"}, "dev": {"y": None}}}, True, "all installed"),
        ("bfloat16", {"bfloat16": Bfloat16Support("works", "succeeded", slowdown=0.4)}, True, "faster than float32"),
        ("bfloat16", {"bfloat16": Bfloat16Support("works", "succeeded", slowdown=12.0)}, True, "use float32"),
        (
            "bfloat16",
            {"bfloat16": Bfloat16Support("works with workaround", "was killed", "A=B", 0.5)},
            False,
            "export A=B",
        ),
        ("bfloat16", {"bfloat16": Bfloat16Support("no", "was killed")}, False, "use float32"),
        ("hub", {"is_hub_reachable": None}, True, "unset it"),
        ("hub", {"is_hub_reachable": False}, True, "only for data and models"),
    ],
)
def test_advice_follows_from_the_value(
    report: DoctorReport, name: str, change: dict[str, object], is_ok: bool, expected_advice: str
) -> None:
    changed = replace(report, **change)  # type: ignore[arg-type]
    check = next(check for check in changed.checks if check.name == name)
    assert check.is_ok == is_ok
    assert expected_advice in check.advice
