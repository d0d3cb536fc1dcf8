"""Every planted mistake is reported, and every correct network passes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headtohead.audit.result import list_blocking_reasons
from headtohead.config.tasks import LANGUAGE_MODEL

from . import correct_networks, look_ahead, ordinary_mistakes, other_mistakes  # noqa: F401  (they register the networks)
from .collection import CORRECT, PLANTED, audit_network


@pytest.mark.parametrize("description", PLANTED)
def test_a_planted_mistake_is_reported(description: str) -> None:
    """The scoring audits, which run for every seed, report it without the model audits."""
    planted = PLANTED[description]
    results = audit_network(planted.network, is_padded=planted.is_padded, with_model_audits=False)
    assert planted.reason in list_blocking_reasons(results), [str(result) for result in results]


@pytest.mark.parametrize("description", CORRECT)
def test_no_audit_withholds_the_verdict_on_a_correct_network(description: str) -> None:
    network, is_padded = CORRECT[description]
    results = audit_network(network, is_padded=is_padded)
    assert list_blocking_reasons(results) == [], [str(result) for result in results if result.passed is False]
    result_by_name = {result.name: result for result in results}
    for name in LANGUAGE_MODEL.required_audits:
        assert result_by_name[name].passed is True, str(result_by_name[name])


def test_the_table_of_the_documentation_lists_the_collection() -> None:
    tool = Path(__file__).parents[2] / "tools" / "planted.py"
    result = subprocess.run([sys.executable, str(tool), "--check"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
