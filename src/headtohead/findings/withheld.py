"""Collect the reasons for withholding verdicts.

This is the only way to withhold a verdict. A reason is a predicate about one variant, such as "reads the future" or
"was trained on different batches than the baseline", so that it also reads well after "the baseline". A reason that
applies to the baseline withholds the verdicts on all variants compared with it. To withhold verdicts for a new cause,
add its reasons to `collect_withheld_reasons`; blocking `CheckResult`s among the audits are already included. The
outcome is then "not comparable", and the report, the terminal, JSON and the web app list `Verdict.withheld`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from headtohead.audit.result import CheckResult, list_blocking_reasons
from headtohead.experiment.provenance.run_membership import RunIssue
from headtohead.experiment.schemas import CorpusFile, PairingRecord

NO_REASONS: Mapping[str, str] = MappingProxyType({})
WithheldReasons = dict[str, list[str]]
"""reasons by variant, or for the baseline; variants that can be judged have no entry"""


def collect_withheld_reasons(
    audits: Mapping[str, Iterable[CheckResult]],
    pairs: Mapping[str, PairingRecord],
    corpus: CorpusFile,
    run_issues: Iterable[RunIssue] = (),
    tuning_reasons: Mapping[str, str] = NO_REASONS,
) -> WithheldReasons:
    """Return why variants cannot be judged.

    The reasons are runs from a different experiment, failed audits, missing pairing, and an optimum at the edge of the
    tuned values.
    """
    reasons: WithheldReasons = {}
    for issue in run_issues:
        reasons.setdefault(issue.variant, []).append(issue.reason)
    for name, checks in audits.items():
        data_checks = corpus.variant_audits.get(name, corpus.audits)
        reasons.setdefault(name, []).extend(list_blocking_reasons([*checks, *data_checks]))
    for name, record in pairs.items():
        reasons.setdefault(name, []).extend([record.unpaired_reason] if record.unpaired_reason else [])
    for name, reason in tuning_reasons.items():
        reasons.setdefault(name, []).append(reason)
    return {name: variant_reasons for name, variant_reasons in reasons.items() if variant_reasons}
