"""Merge a variant's model audits over its seeds. A required audit without a result counts as failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headtohead.audit.result import CheckResult
from headtohead.experiment.run_folder import Run


def merge_audits_over_seeds(runs_by_seed: Mapping[int, Run], required_audits: Sequence[str]) -> list[CheckResult]:
    """Return a variant's audits: for each check, the worst result across seeds.

    A required audit that is missing or has no outcome for some seed counts as failed, and the result says what to do.
    """
    worst_audits: dict[str, CheckResult] = {}
    for seed, run in runs_by_seed.items():
        audits = {audit.name: audit for audit in run.audits or ()}
        for name in required_audits:
            if name not in audits or audits[name].passed is None:
                audits[name] = _fail_missing_audit(name, audits.get(name), seed)
        for name, audit in audits.items():
            if name not in worst_audits or _rank_audit(audit) < _rank_audit(worst_audits[name]):
                worst_audits[name] = audit
    return list(worst_audits.values())


def _rank_audit(audit: CheckResult) -> int:
    """Return the rank of an audit's outcome from worst to best: failed, passed, does not apply."""
    return 2 if audit.passed is None else int(audit.passed)


def _fail_missing_audit(name: str, audit: CheckResult | None, seed: int) -> CheckResult:
    """Return a failed audit that withholds the verdict, for a required audit that has no outcome with a seed."""
    observation = f"seed {seed}: {audit.observation}" if audit else f"audits.json of seed {seed} does not contain it"
    interpretation = audit.interpretation if audit else "Remove the run and train it again with --resume."
    reason = f"has no result of the required audit {name} for seed {seed}"
    return CheckResult(name, False, "", observation, interpretation, is_blocking=True, failure_reason=reason)
