"""Disable run-time shape checks, which would take most of the time. The same calls are checked in other tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from jaxtyping import config


@pytest.fixture(scope="module", autouse=True)
def unchecked_shapes() -> Iterator[None]:
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)
