"""Variants compared with a variant other than the baseline, and claims about them."""

import pytest

from headtohead.errors import ConfigError
from headtohead.runner import run_experiment

pytestmark = pytest.mark.usefixtures("in_process_workers")

VARIANTS = {
    "slow": {"training": {"optimizer": {"kind": "adamw", "lr": 1e-6}}},
    "fast": {"training": {"optimizer": {"kind": "adamw", "lr": 1e-2}}},
}
COMPARISON = {"title": "Among rates", "description": "A rate matters.", "baseline": "slow", "variants": ["fast"]}
CLAIM = {
    "source": "X",
    "statement": "fast is better",
    "variant": "fast",
    "baseline": "slow",
    "expected_verdict": "helped",
}


def test_a_comparison_is_judged_against_its_own_baseline(small, tmp_path):
    experiment = small(variants=VARIANTS, comparisons=[COMPARISON], claims=[CLAIM, {**CLAIM, "baseline": "baseline"}])
    findings = run_experiment.run_experiment(experiment, tmp_path / "runs", num_workers=1).findings
    (item,) = findings.comparisons
    assert (item.title, item.baseline, item.description) == ("Among rates", "slow", "A rate matters.")
    (row,) = item.verdicts
    assert row.variant == "fast"
    by_name = {name: [value for _, value in pairs] for name, pairs in findings.primary_scores.items()}
    removed = [fast / slow for fast, slow in zip(by_name["fast"], by_name["slow"], strict=True)]
    assert min(removed) - 1 <= row.effect <= max(removed) - 1
    among, plain = findings.claims
    assert among.effect == row.effect and among.outcome == row.outcome
    assert plain.effect == next(v for v in findings.verdicts if v.variant == "fast").effect != among.effect


def test_a_comparison_with_the_baseline_repeats_the_verdict_on_the_variant(small, tmp_path):
    with_baseline = {**COMPARISON, "baseline": "baseline"}
    experiment = small(variants=VARIANTS, comparisons=[with_baseline], claims=[{**CLAIM, "baseline": "baseline"}])
    findings = run_experiment.run_experiment(experiment, tmp_path / "runs", num_workers=1).findings
    (claim,), ((row,),) = findings.claims, [comparison.verdicts for comparison in findings.comparisons]
    of_all = next(v for v in findings.verdicts if v.variant == "fast")
    assert claim.summary == row.summary == of_all.summary  # one comparison has one interval


def test_comparisons_and_claims_about_nothing_are_rejected(small):
    with pytest.raises(ConfigError, match=r"'Among rates' names a variant 'quick' that is not in the file"):
        small(variants=VARIANTS, comparisons=[{**COMPARISON, "variants": ["quick"]}])
    with pytest.raises(ConfigError, match="no comparison of the file sets 'fast' against 'slow'"):
        small(variants=VARIANTS, claims=[CLAIM])
