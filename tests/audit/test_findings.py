"""The record of an audit, and what takes a verdict away."""

from __future__ import annotations

import json

import headtohead.audit as room
from headtohead.audit.result import Finding, not_comparable

PASSED = Finding("causality", True, "tried", "found", "meaning", serious=True)
FLAW = Finding("padding", False, "tried", "found", "meaning", reason="sees padding")
CHEAT = Finding("causality", False, "tried", "found", "meaning", serious=True, reason="reads the future")


def test_only_what_failed_and_is_serious_takes_the_verdict_away() -> None:
    assert not_comparable([PASSED, FLAW]) == ""
    assert not_comparable([FLAW, CHEAT]) == "reads the future"


def test_row_is_plain_data() -> None:
    row = json.loads(json.dumps(CHEAT.as_row()))
    assert row == {
        "name": "causality",
        "passed": False,
        "tried": "tried",
        "found": "found",
        "meaning": "meaning",
        "serious": True,
        "reason": "reads the future",
    }


def test_public_names_are_sorted_and_there() -> None:
    assert room.__all__ == sorted(room.__all__)
    assert all(hasattr(room, name) for name in room.__all__)
