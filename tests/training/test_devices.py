"""Selecting devices and the number of threads."""

from __future__ import annotations

import pytest
import torch

from headtohead.errors import DeviceError, RequestError
from headtohead.training.hardware import devices


def test_cpu_is_always_available() -> None:
    assert devices.select_device("cpu") == torch.device("cpu")


def test_auto_selects_the_first_available_kind() -> None:
    available = []
    for kind in ("cuda", "mps", "cpu"):
        try:
            available.append(devices.select_device(kind))
        except DeviceError:
            continue
    assert devices.select_device("auto") == available[0]


@pytest.mark.parametrize(
    ("kind", "is_available"),
    [("cuda", torch.cuda.is_available()), ("mps", torch.backends.mps.is_available())],
)
def test_an_unavailable_device_is_rejected_with_a_reason_and_alternatives(kind: str, is_available: bool) -> None:
    if is_available:
        pytest.skip(f"this machine has {kind}")
    with pytest.raises(DeviceError, match=rf"'{kind}' is not available: .+; use --device auto or --device cpu"):
        devices.select_device(kind)


@pytest.mark.parametrize(("name", "suggestion"), [("gpu", "cuda"), ("cud", "cuda"), ("metal", "mps"), ("Auto", "auto")])
def test_an_unknown_device_suggests_the_closest_and_lists_all(name: str, suggestion: str) -> None:
    with pytest.raises(DeviceError, match=f"'{name}'; did you mean '{suggestion}'.*auto, cpu, cuda, mps"):
        devices.select_device(name)


def test_an_unknown_device_without_a_close_match_gets_no_suggestion() -> None:
    with pytest.raises(DeviceError, match=r"unknown device 'xyzzy' \(allowed"):
        devices.select_device("xyzzy")


def test_a_missing_device_has_the_exit_code_of_a_wrong_request() -> None:
    assert DeviceError.exit_code == 2


def test_set_num_threads_returns_the_previous_number() -> None:
    before = torch.get_num_threads()
    try:
        assert devices.set_num_threads(2) == before
        assert torch.get_num_threads() == 2
    finally:
        assert devices.set_num_threads(before) == 2


@pytest.mark.parametrize("n", [0, -1])
def test_less_than_one_thread_is_rejected(n: int) -> None:
    with pytest.raises(RequestError, match=f"threads must be 1 or more, got {n}"):
        devices.set_num_threads(n)
