"""Every planted mistake is named, and no honest network is accused."""

from __future__ import annotations

import pytest

from headtohead.audit.result import list_blocking_reasons
from headtohead.config.tasks import LANGUAGE_MODEL

from . import honest, look_ahead, other_mistakes  # noqa: F401  (they enter the networks)
from .collection import HONEST, PLANTED, audit_network


@pytest.mark.parametrize("description", PLANTED)
def test_a_planted_mistake_is_named(description: str) -> None:
    case = PLANTED[description]
    results = audit_network(case.network, is_padded=case.is_padded)
    assert case.reason in list_blocking_reasons(results), [str(result) for result in results]


@pytest.mark.parametrize("description", HONEST)
def test_no_audit_accuses_an_honest_network(description: str) -> None:
    network, is_padded = HONEST[description]
    results = audit_network(network, is_padded=is_padded)
    assert list_blocking_reasons(results) == [], [str(result) for result in results if result.passed is False]
    outcomes = {result.name: result for result in results}
    for name in LANGUAGE_MODEL.required_audits:
        assert outcomes[name].passed is True, str(outcomes[name])
