"""False verdicts and advice in small: procedures add seeds, lose runs and share the error budget as experiments do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tools.calibration import aa_training, advice, cli_runs, page
from tools.calibration.coverage import CoverageCell
from tools.calibration.false_verdicts import (
    FalseVerdictRow,
    FamilyRow,
    MeasuredExperiment,
    _has_false_verdict,
    add_seeds_automatically,
    follow_advice,
    judge_once,
    lose_worst_runs,
    round_scores,
)
from tools.calibration.results import ResultStore

from headtohead.verdict.compare import ErrorBudget


def simulate(effect: float, random_seed: int = 0, documents: int = 20) -> MeasuredExperiment:
    """An experiment whose variant changes the loss of every document by `effect`."""
    rng = np.random.default_rng(random_seed)
    values = 3 + rng.normal(0, 0.1, (2, aa_training.SEEDS, documents)) + rng.normal(0, 0.1, (2, aa_training.SEEDS, 1))
    values[1] += effect
    return MeasuredExperiment("perplexity", values, np.ones(documents), tuple(map(str, range(documents))))


def test_procedures_stop_when_the_verdict_is_settled() -> None:
    verdict, analyses = add_seeds_automatically(12)(simulate(5.0), 0.01)
    assert (verdict.outcome, verdict.seeds, analyses) == ("hurt", 3, 1)
    verdict, analyses = follow_advice(3)(simulate(-0.15), 0.01)
    assert verdict.outcome == "helped"
    assert analyses > 1
    assert verdict.seeds > 3


def test_every_analysis_but_the_first_is_charged() -> None:
    experiment = simulate(0.0, 3)
    single, _ = judge_once(12)(experiment, 0.01)
    repeated, analyses = add_seeds_automatically(12)(experiment, 0.01)
    assert (repeated.seeds, analyses) == (12, 4)
    assert repeated.adjusted_confidence > single.adjusted_confidence
    budget = ErrorBudget().add_analysis("variant", 5)
    assert experiment.judge(12, budget, 0.01).adjusted_confidence > single.adjusted_confidence


def test_the_worst_runs_are_lost() -> None:
    experiment = simulate(0.0)
    for metric, sign in (("perplexity", 1), ("accuracy", -1)):
        values = (
            np.repeat(np.arange(24.0)[:, None], 2, 1) if sign > 0 else np.repeat(np.arange(24.0)[:, None] / 24, 2, 1)
        )
        table = MeasuredExperiment(metric, np.stack([values, values]), np.ones(2), ("a", "b"))
        _, variant = lose_worst_runs(*(table.get_scores(side, range(5)) for side in range(2)))
        assert variant.lost == ((3, 4) if sign > 0 else (0, 1))
        assert len(variant.seeds) == 3
    verdict, _ = judge_once(5, lose_worst_runs)(experiment, 0.01)
    assert (verdict.runs, verdict.lost_runs, verdict.seeds) == (5, 2, 3)


def test_rounded_scores_have_ties() -> None:
    baseline, variant = round_scores(*(simulate(0.0).get_scores(side, range(3)) for side in range(2)))
    assert baseline.values.shape == (3, 1)
    assert np.allclose(100 * variant.values, np.round(100 * variant.values))


def test_a_family_uses_every_run_once() -> None:
    # With 15 variants and 3 seeds, 48 runs are used. A changed run of the baseline makes all variants differ.
    experiment = simulate(0.0)
    assert not _has_false_verdict(experiment, 15, 3)
    experiment.values[0, :3] += 5
    assert _has_false_verdict(experiment, 15, 3)


def test_a_rate_above_its_bar_is_counted() -> None:
    rows = [FalseVerdictRow("language model", "5 seeds", 0.01, 1000, count, 30, 0, 5.0, 1.0) for count in (20, 50)]
    assert [row.misses_target for row in rows] == [False, True]
    text = page.format_false_verdicts(rows)
    assert "8.0 %" in text and "1 row above 5 %" in text
    assert "No rows above 5 %" in page.format_families([FamilyRow("classifier", 7, 5, 1000, 50)])


def test_advice_is_checked_with_the_data_that_it_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "EXPERIMENTS", 25)
    row = advice._measure_advice(advice.SETTINGS[0], 5)
    assert row.settled_at_once + row.advised <= 25
    assert sum(row.advised_by_effect) == row.advised
    assert sum(row.true_by_effect) == row.true
    assert row.true >= row.advised / 2
    assert "5 |" in page.format_advice([row])


def test_more_data_extends_the_table_that_was_seen() -> None:
    experiment = advice.SimulatedExperiment(np.random.default_rng(0), 0.5, advice.SETTINGS[1])
    experiment.judge(3, 30, ErrorBudget())
    first = experiment.of_seeds
    experiment.judge(5, 40, ErrorBudget())
    assert (experiment.of_seeds[:3] == first).all()
    assert (len(experiment.of_seeds), len(experiment.of_documents)) == (5, 40)


def test_results_of_other_code_are_used_only_on_request(tmp_path: Path) -> None:
    cell = CoverageCell("a", "equal", 3, 9, 10, 0.9, 2.0)
    ResultStore(tmp_path, ("statistics",)).get("s", "key", CoverageCell, lambda: cell)
    assert not ResultStore(tmp_path, ("rule",)).load("s")
    assert ResultStore(tmp_path, ("rule",), accepts_stale=True).load("s")


@pytest.mark.parametrize("kind", list(aa_training.KINDS))
def test_commands_are_run_and_resumed(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_runs, "MAX_SEEDS", 4)
    row = cli_runs.run_cli_experiment(kind, 1_000, tmp_path / "experiment")
    assert row.seeds == (3, 4)
    assert len(row.verdicts) == 2
    assert row.confidences[1] > row.confidences[0]
    assert not (tmp_path / "experiment").exists()


def test_a_variant_that_lost_all_runs_has_a_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_runs, "MAX_SEEDS", 3)
    classifier = aa_training.KINDS["classifier"]
    variant = {"training": {"optimizer": {"kind": "adam", "lr": 1e-9}}}
    monkeypatch.setitem(aa_training.KINDS, "classifier", {**classifier, "variants": {"untrained": variant}})
    row = cli_runs.run_cli_experiment("classifier", 1_000, tmp_path / "experiment")
    assert row.verdicts[-1] in ("cannot tell", "too few seeds", "not comparable")
