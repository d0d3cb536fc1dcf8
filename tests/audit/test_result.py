"""Check results and the reasons for withholding a verdict."""

from __future__ import annotations

import json

from headtohead.audit.result import CheckResult, format_blocking_reasons

PASSED = CheckResult("causality", True, "tried", "found", "meaning", is_blocking=True)
FLAW = CheckResult("padding", False, "tried", "found", "meaning", failure_reason="sees padding")
CHEAT = CheckResult(
    "causality", False, "tried", "found", "meaning", is_blocking=True, failure_reason="reads the future"
)


def test_only_what_failed_and_is_serious_withholds_the_verdict() -> None:
    assert format_blocking_reasons([PASSED, FLAW]) == ""
    assert format_blocking_reasons([FLAW, CHEAT]) == "reads the future"


def test_row_is_plain_data() -> None:
    row = json.loads(json.dumps(CHEAT.to_dict()))
    assert row == {
        "name": "causality",
        "passed": False,
        "procedure": "tried",
        "observation": "found",
        "interpretation": "meaning",
        "is_blocking": True,
        "failure_reason": "reads the future",
    }
