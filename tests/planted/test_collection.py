"""Every planted mistake is named, and no honest network is accused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headtohead.audit.result import list_blocking_reasons
from headtohead.config.tasks import LANGUAGE_MODEL

from . import honest, look_ahead, other_mistakes, weekly_mistakes  # noqa: F401  (they enter the networks)
from .collection import HONEST, PLANTED, audit_network


@pytest.mark.parametrize("description", PLANTED)
def test_a_planted_mistake_is_named(description: str) -> None:
    """The audits of the scores, which run on every seed, name it without those of the model."""
    case = PLANTED[description]
    results = audit_network(case.network, is_padded=case.is_padded, with_model=False)
    assert case.reason in list_blocking_reasons(results), [str(result) for result in results]


@pytest.mark.parametrize("description", HONEST)
def test_no_audit_accuses_an_honest_network(description: str) -> None:
    network, is_padded = HONEST[description]
    results = audit_network(network, is_padded=is_padded)
    assert list_blocking_reasons(results) == [], [str(result) for result in results if result.passed is False]
    outcomes = {result.name: result for result in results}
    for name in LANGUAGE_MODEL.required_audits:
        assert outcomes[name].passed is True, str(outcomes[name])


def test_the_table_of_the_documentation_lists_the_collection() -> None:
    tool = Path(__file__).parents[2] / "tools" / "planted.py"
    result = subprocess.run([sys.executable, str(tool), "--check"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
