"""Devices and the doctor: what is asked for and not there, children that die or hang, and what is said of it."""

from __future__ import annotations

import json
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import torch

from headtohead.errors import DeviceError, RequestError
from headtohead.training import devices
from headtohead.training.devices import Bfloat16Support, DoctorCheck, DoctorReport

ROOT = Path(__file__).parents[2]
GOOD = 'import json; print(json.dumps({"error": 0.001, "slowdown": 2.0}))'
DIES_WITHOUT_CURE = f"""
import os, signal
if os.environ.get("ONEDNN_MAX_CPU_ISA") != "AVX512_CORE_BF16":
    os.kill(os.getpid(), signal.SIGILL)
{GOOD}
"""
DIES = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"


@pytest.fixture
def no_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in devices.BFLOAT16_WORKAROUND_ENV:
        monkeypatch.delenv(name, raising=False)


def test_cpu_is_always_there() -> None:
    assert devices.select_device("cpu") == torch.device("cpu")


def test_auto_is_the_first_kind_that_can_be_asked_for_by_name() -> None:
    there = []
    for kind in ("cuda", "mps", "cpu"):
        try:
            there.append(devices.select_device(kind))
        except DeviceError:
            continue
    assert devices.select_device("auto") == there[0]


@pytest.mark.parametrize(
    ("kind", "there"),
    [("cuda", torch.cuda.is_available()), ("mps", torch.backends.mps.is_available())],
)
def test_a_device_that_is_not_there_is_refused_with_the_reason_and_a_way_out(kind: str, there: bool) -> None:
    if there:
        pytest.skip(f"this machine has {kind}")
    with pytest.raises(DeviceError, match=rf"'{kind}' is not there: .+; use --device auto or --device cpu"):
        devices.select_device(kind)


@pytest.mark.parametrize(("given", "meant"), [("gpu", "cuda"), ("cud", "cuda"), ("metal", "mps"), ("Auto", "auto")])
def test_an_unknown_device_names_the_nearest_and_all_that_are_allowed(given: str, meant: str) -> None:
    with pytest.raises(DeviceError, match=f"'{given}'; did you mean '{meant}'.*auto, cpu, cuda, mps"):
        devices.select_device(given)


def test_a_device_like_no_other_gets_no_hint() -> None:
    with pytest.raises(DeviceError, match=r"no device is called 'xyzzy' \(allowed"):
        devices.select_device("xyzzy")


def test_a_missing_device_is_a_wrong_request() -> None:
    assert DeviceError.exit_code == 2


def test_threads_are_set_and_the_former_number_is_given_back() -> None:
    before = torch.get_num_threads()
    try:
        assert devices.set_num_threads(2) == before
        assert torch.get_num_threads() == 2
    finally:
        assert devices.set_num_threads(before) == 2


@pytest.mark.parametrize("n", [0, -1])
def test_less_than_one_thread_is_refused(n: int) -> None:
    with pytest.raises(RequestError, match=f"threads must be 1 or more, got {n}"):
        devices.set_num_threads(n)


def test_a_child_answers_with_the_last_line_that_it_prints() -> None:
    tried = devices.run_in_child_process(
        "print('noise'); import sys, json; print(json.dumps({'a': sys.argv[1]}))", "x", timeout_seconds=20
    )
    assert tried.answer == {"a": "x"}


def test_a_child_that_is_killed_does_not_take_us_along() -> None:
    tried = devices.run_in_child_process(DIES, timeout_seconds=20)
    assert tried.answer is None
    assert tried.ending == "was killed: Illegal instruction"


def test_a_child_that_hangs_is_ended_in_time() -> None:
    began = time.monotonic()
    tried = devices.run_in_child_process("import time; time.sleep(60)", timeout_seconds=0.5)
    assert time.monotonic() - began < 20
    assert (tried.answer, tried.ending) == (None, "gave no answer in 0.5 s")


def test_a_child_that_fails_says_why() -> None:
    tried = devices.run_in_child_process("raise ValueError('no such luck')", timeout_seconds=20)
    assert (tried.answer, tried.ending) == (None, "failed: ValueError: no such luck")


def test_bfloat16_is_tried_on_this_machine_for_real() -> None:
    found = devices.probe_bfloat16()
    # Any of the three may be true of a machine, but none through a mistake in what the child runs.
    assert not found.ending.startswith("failed")
    assert (found.outcome == "works") == devices.is_bfloat16_usable()
    assert (found.outcome == "no") == (found.slowdown is None)


def test_a_death_that_the_setting_prevents_names_the_setting(no_cure: None) -> None:
    found = devices.probe_bfloat16(probe_code=DIES_WITHOUT_CURE, timeout_seconds=20)
    cure = "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"
    assert found == Bfloat16Support("works with cure", "was killed: Illegal instruction", cure, 2.0)


def test_with_the_setting_already_made_bfloat16_just_works(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in devices.BFLOAT16_WORKAROUND_ENV.items():
        monkeypatch.setenv(name, value)
    assert devices.probe_bfloat16(probe_code=DIES_WITHOUT_CURE, timeout_seconds=20).outcome == "works"


def test_a_death_that_nothing_prevents_is_a_no(no_cure: None) -> None:
    assert devices.probe_bfloat16(probe_code=DIES, timeout_seconds=20).outcome == "no"


@pytest.mark.parametrize("error", ["0.5", "float('nan')"])
def test_a_wrong_product_is_a_no(error: str) -> None:
    code = f"import json; print(json.dumps({{'error': {error}, 'slowdown': 1.0}}))"
    found = devices.probe_bfloat16(probe_code=code, timeout_seconds=20)
    assert found.outcome == "no"
    assert found.ending.startswith("computed wrongly")


def test_extras_are_those_of_the_project_file() -> None:
    found = devices.list_extras()
    if not found:
        pytest.skip("headtohead is not installed as a package here, only importable")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(found) == set(project["optional-dependencies"]) - {"all"}
    assert set(found["serve"]) == {"fastapi", "uvicorn"}


def test_extras_of_a_package_that_is_not_installed_are_not_known() -> None:
    assert devices.list_extras("no-such-package-anywhere") == {}


def test_an_extra_tells_what_is_missing() -> None:
    # pytest's own extras: at least one of their packages is in no environment of this project.
    found = devices.list_extras("pytest")
    assert found
    assert None in found["dev"].values()


class _Answers(BaseHTTPRequestHandler):
    status = 200

    def do_HEAD(self) -> None:
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Refuses(_Answers):
    status = 403


@pytest.fixture(params=[_Answers, _Refuses])
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


def test_a_hub_that_answers_anything_is_reachable(server: str, online: None) -> None:
    assert devices.is_hub_reachable(server, timeout_seconds=10) is True


def test_a_hub_that_does_not_answer_is_not_reachable(online: None) -> None:
    closed = HTTPServer(("127.0.0.1", 0), _Answers)
    address = f"http://127.0.0.1:{closed.server_port}"
    closed.server_close()
    assert devices.is_hub_reachable(address, timeout_seconds=10) is False


def test_offline_the_hub_is_not_asked(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert devices.is_hub_reachable(server) is None


def test_chromium_is_found_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert devices.find_chromium() is None
    browser = tmp_path / "chromium-browser"
    browser.write_text("#!/bin/sh\n")
    browser.chmod(0o755)
    assert devices.find_chromium() == str(browser)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> DoctorReport:
    return devices.inspect_machine(tmp_path_factory.mktemp("runs") / "not" / "yet" / "there", check_hub=lambda: None)


def about(seen: DoctorReport, name: str) -> DoctorCheck:
    return next(finding for finding in seen.findings if finding.name == name)


def test_the_examination_is_plain_data_with_all_that_it_found(seen: DoctorReport) -> None:
    told = json.loads(json.dumps(seen.to_dict()))
    assert told == seen.to_dict() | {"findings": told["findings"]}
    assert told["device"] == devices.select_device("auto").type
    assert told["cores"] >= 1
    assert 0 < told["memory_free"] <= told["memory"]
    assert told["disk_free"] > 0
    assert told["versions"]["torch"] == torch.__version__
    assert told["versions"]["python"] == sys.version.split()[0]
    assert told["bfloat16"]["outcome"] in {"works", "works with cure", "no"}


def test_every_finding_comes_with_advice(seen: DoctorReport) -> None:
    names = [finding.name for finding in seen.findings]
    expected = "device cores memory disk versions extras bfloat16 hub chromium"
    assert names == expected.split()
    assert all(finding.found and finding.advice for finding in seen.findings)


@pytest.mark.parametrize(
    ("name", "change", "fine", "words"),
    [
        ("cores", {"cores": 2, "threads": 3}, False, "OMP_NUM_THREADS=1"),
        ("cores", {"cores": 2, "threads": 2}, True, "one a core"),
        ("memory", {"memory_free": 2**30}, False, "--workers 1"),
        ("memory", {"memory_free": 2**33}, True, "enough"),
        ("disk", {"disk_free": 2**20}, False, "--out"),
        ("disk", {"disk_free": 2**40}, True, "enough"),
        ("versions", {"versions": {"headtohead": None}}, False, "pip install -e ."),
        ("versions", {"versions": {"headtohead": "1.2.3"}}, True, "report"),
        ("extras", {"extras": {}}, False, "pip install -e ."),
        ("extras", {"extras": {"a": {"x": "1"}, "b": {"y": None}}}, True, "pip install 'headtohead[b]'"),
        ("extras", {"extras": {"a": {"x": "1"}}}, True, "everything"),
        ("bfloat16", {"bfloat16": Bfloat16Support("works", "answered", slowdown=0.4)}, True, "worth a try"),
        ("bfloat16", {"bfloat16": Bfloat16Support("works", "answered", slowdown=12.0)}, True, "stay with float32"),
        ("bfloat16", {"bfloat16": Bfloat16Support("works with cure", "was killed", "A=B", 0.5)}, False, "export A=B"),
        ("bfloat16", {"bfloat16": Bfloat16Support("no", "was killed")}, False, "stay with float32"),
        ("hub", {"hub": None}, True, "unset it"),
        ("hub", {"hub": False}, True, "only data and models"),
    ],
)
def test_advice_fits_what_was_found(
    seen: DoctorReport, name: str, change: dict[str, object], fine: bool, words: str
) -> None:
    finding = about(replace(seen, **change), name)  # type: ignore[arg-type]
    assert finding.fine == fine
    assert words in finding.advice
