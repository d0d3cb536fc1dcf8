"""Repeatable: does the same text get the same answer?

Random draws at evaluation are a flaw and not a cheat: nothing is read that should not be, each seed draws its own, and
so the noise is part of what the interval over seeds shows. A verdict stays. But a model whose answer changes even from
the same random state cannot be audited at all, and nothing that it scores can be believed.
"""

from __future__ import annotations

from headtohead.audit.probe import AuditedModel
from headtohead.audit.result import CheckResult
from headtohead.audit.tolerance import select_worst

CHECK_NAME = "determinism"


def audit_determinism(audited_model: AuditedModel) -> CheckResult:
    """The same text twice from one random state, and from three others."""
    tried = f"the same texts again, from the same and from 3 other random states; evaluation mode, {audited_model.how}"
    again = select_worst(audited_model.measure_repeat(draw_index=draw) for draw in range(4))
    if audited_model.noise == "none":
        return CheckResult(
            CHECK_NAME, True, tried, f"the same answer: {again}", "A score can be taken again and is the same."
        )
    if audited_model.noise == "drawn":
        return CheckResult(
            CHECK_NAME,
            False,
            tried,
            f"another answer each time, by up to {again}; the same one when the same numbers are drawn",
            "The model draws at random when it is scored: each score is one draw of many. The interval over seeds "
            "holds that noise, so that the verdict stands.",
            failure_reason="gives another answer each time",
        )
    return CheckResult(
        CHECK_NAME,
        False,
        tried,
        f"another answer each time, by up to {again}, even when the same numbers are drawn",
        "Something outside the text moves the answer (state kept between passes, a clock, a source of chance of its "
        "own): no other audit can be made, and no score believed.",
        is_blocking=True,
        failure_reason="gives another answer each time",
    )
