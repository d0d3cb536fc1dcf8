"""False verdicts and advice at a small scale: procedures add seeds, lose runs and use the error budget correctly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tools.calibration import aa_training, advice, cli_runs, collapse, page
from tools.calibration.coverage import CoverageCell
from tools.calibration.false_verdicts import (
    FalseVerdictRow,
    FamilyRow,
    MeasuredExperiment,
    add_seeds_automatically,
    follow_advice,
    has_false_verdict,
    judge_once,
    lose_worst_runs,
    round_scores,
)
from tools.calibration.results import ResultStore

from headtohead.verdict.interim import AlphaBudget


def simulate_experiment(effect: float, random_seed: int = 0, documents: int = 20) -> MeasuredExperiment:
    """Simulate an experiment whose variant changes the loss of every document by `effect`."""
    rng = np.random.default_rng(random_seed)
    losses = 3 + rng.normal(0, 0.1, (2, aa_training.SEEDS, documents)) + rng.normal(0, 0.1, (2, aa_training.SEEDS, 1))
    losses[1] += effect
    return MeasuredExperiment("perplexity", losses, np.ones(documents), tuple(map(str, range(documents))))


def test_procedures_stop_when_the_verdict_is_settled() -> None:
    verdict, analyses = add_seeds_automatically(12)(simulate_experiment(5.0), 0.01)
    assert (verdict.outcome, verdict.seeds, analyses) == ("hurt", 3, 1)
    verdict, analyses = follow_advice(3)(simulate_experiment(-0.15), 0.01)
    assert verdict.outcome == "helped"
    assert analyses > 1
    assert verdict.seeds > 3


def test_later_analyses_spend_error_rate() -> None:
    experiment = simulate_experiment(0.0, 3)
    single, _ = judge_once(12)(experiment, 0.01)
    repeated, analyses = add_seeds_automatically(12)(experiment, 0.01)
    assert (repeated.seeds, analyses) == (12, 4)
    assert repeated.adjusted_confidence > single.adjusted_confidence
    budget = AlphaBudget().add_analysis("variant", 5)
    assert experiment.judge(12, budget, 0.01).adjusted_confidence > single.adjusted_confidence


def test_lose_worst_runs_removes_the_worst_runs() -> None:
    experiment = simulate_experiment(0.0)
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


def test_intervals_cover_runs_that_did_not_collapse(monkeypatch: pytest.MonkeyPatch) -> None:
    """A 95 % interval over all runs, including collapsed ones, covers the mean in about half of the experiments."""
    monkeypatch.setattr(collapse, "NUM_EXPERIMENTS", 400)
    row = collapse._simulate_collapses(0.1, 5)
    assert row.mean_covered < 0.6 * 400
    assert row.with_interval > 0.88 * 400
    assert row.covered > 0.94 * row.with_interval
    assert row.bound_covered > 0.94 * 400
    assert row.false < 0.05 * 400


def test_rounded_scores_have_ties() -> None:
    baseline, variant = round_scores(*(simulate_experiment(0.0).get_scores(side, range(3)) for side in range(2)))
    assert baseline.values.shape == (3, 1)
    assert np.allclose(100 * variant.values, np.round(100 * variant.values))


def test_variants_of_a_family_share_no_runs() -> None:
    # With 15 variants and 3 seeds, 48 runs are used. A changed run of the baseline makes all variants differ.
    experiment = simulate_experiment(0.0)
    assert not has_false_verdict(experiment, 15, 3)
    experiment.values[0, :3] += 5
    assert has_false_verdict(experiment, 15, 3)


def test_rates_above_5_percent_are_reported() -> None:
    rows = [FalseVerdictRow("language model", "5 seeds", 0.01, 1000, count, 30, 0, 5.0, 1.0) for count in (20, 50)]
    assert [row.misses_target for row in rows] == [False, True]
    text = page.format_false_verdicts(rows)
    assert "8.0 %" in text and "1 row above 5 %" in text
    assert "No rows above 5 %" in page.format_families([FamilyRow("classifier", 7, 5, 1000, 50)])


def test_advice_is_checked_with_the_advised_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "NUM_EXPERIMENTS", 25)
    row = advice._measure_advice(advice.SETTINGS[0], 5)
    assert row.settled_at_once + row.advised <= 25
    assert sum(row.advised_by_effect) == row.advised
    assert sum(row.true_by_effect) == row.true
    assert row.true >= row.advised / 2
    assert "5 |" in page.format_advice([row])


def test_more_data_extend_the_earlier_scores() -> None:
    experiment = advice.SimulatedExperiment(np.random.default_rng(0), 0.5, advice.SETTINGS[1])
    experiment.judge(3, 30, AlphaBudget())
    earlier_effects = experiment.seed_effects
    experiment.judge(5, 40, AlphaBudget())
    assert (experiment.seed_effects[:3] == earlier_effects).all()
    assert (len(experiment.seed_effects), len(experiment.document_effects)) == (5, 40)


def test_stale_results_are_used_only_on_request(tmp_path: Path) -> None:
    cell = CoverageCell("a", "equal", 3, 9, 10, 0.9, 2.0)
    ResultStore(tmp_path, "first").get("s", "key", CoverageCell, lambda: cell)
    assert not ResultStore(tmp_path, "second").load("s")
    assert ResultStore(tmp_path, "second", accepts_stale=True).load("s")


@pytest.mark.parametrize("kind", list(aa_training.AA_EXPERIMENTS))
def test_commands_are_run_and_resumed(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_runs, "MAX_SEEDS", 4)
    row = cli_runs.run_cli_experiment(kind, 1_000, tmp_path / "experiment")
    assert row.seeds == (3, 4)
    assert len(row.verdicts) == 2
    assert row.confidences[1] > row.confidences[0]
    assert not (tmp_path / "experiment").exists()


def test_a_variant_that_lost_all_runs_has_a_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_runs, "MAX_SEEDS", 3)
    classifier = aa_training.AA_EXPERIMENTS["classifier"]
    variant = {"training": {"optimizer": {"kind": "adam", "lr": 1e-9}}}
    monkeypatch.setitem(aa_training.AA_EXPERIMENTS, "classifier", {**classifier, "variants": {"untrained": variant}})
    row = cli_runs.run_cli_experiment("classifier", 1_000, tmp_path / "experiment")
    assert row.verdicts[-1] in ("cannot tell", "too few seeds", "not comparable")
