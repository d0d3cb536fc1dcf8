import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headtohead.errors import RunFolderError
from headtohead.experiment import findings_view
from headtohead.json_files import write_json
from headtohead.report.charts.learning_curves import compute_difference_curves, compute_learning_curves
from headtohead.report.charts.paired_scores import pair_scores_by_seed

from .make_findings import make_findings

RawFindings = dict[str, Any]


def test_the_baseline_comes_first_and_variants_keep_their_order(raw_findings: Callable[..., RawFindings]) -> None:
    result = raw_findings({"zeta": 0.0, "alpha": 0.0})
    assert findings_view.list_variant_names(make_findings(result)) == ["baseline", "zeta", "alpha"]


def test_a_learning_curve_has_the_geometric_mean_and_the_range_of_seeds() -> None:
    result = {"metric": "perplexity", "curves": {"baseline": {"test": {"0": [[1, 100.0]], "1": [[1, 400.0]]}}}}
    (point,) = compute_learning_curves(make_findings(result), "test")
    assert (point.mean, point.low, point.high, point.seeds) == (pytest.approx(200.0), 100.0, 400.0, 2)


def test_difference_curves_are_paired_by_seed() -> None:
    # Each seed of the variant is 10 % below the same seed of the baseline; unpaired, the ranges would overlap.
    baseline = {"0": [[1, 100.0]], "1": [[1, 200.0]], "2": [[1, 50.0]]}
    variant = {"0": [[1, 90.0]], "1": [[1, 180.0]], "9": [[1, 1.0]]}
    result = {"metric": "perplexity", "curves": {"baseline": {"t": baseline}, "v": {"t": variant}}}
    (point,) = compute_difference_curves(make_findings(result), "t")
    assert point.mean == pytest.approx(-0.1)
    assert (point.low, point.high) == (pytest.approx(-0.1), pytest.approx(-0.1))
    assert point.seeds == 2


def test_the_training_loss_is_not_a_split_of_the_learning_curves() -> None:
    result = {"metric": "accuracy", "curves": {"baseline": {"batches": {"0": [[1, 8.7]]}, "test": {"0": [[1, 0.5]]}}}}
    assert findings_view.list_curve_splits(make_findings(result)) == ["test"]


def test_paired_scores_are_those_of_the_primary_set_or_else_of_each_held_out_split(
    raw_findings: Callable[..., RawFindings],
) -> None:
    result = raw_findings({"v": -0.1})
    assert {pair.evaluation_set for pair in pair_scores_by_seed(make_findings(result))} == {"test"}
    assert all(
        pair.effect == pytest.approx(math.expm1(-0.1), abs=0.02) for pair in pair_scores_by_seed(make_findings(result))
    )
    result["rows"] = "unseen"
    assert {pair.evaluation_set for pair in pair_scores_by_seed(make_findings(result))} == {"test, all rows"}
    result["primary_scores"] = {"baseline": [[0, 400.0]], "v": [[0, 300.0], [1, 5.0]]}
    assert [(p.evaluation_set, p.seed, p.effect) for p in pair_scores_by_seed(make_findings(result))] == [
        ("test, unseen rows", 0, -0.25)
    ]


def test_paired_scores_of_several_splits_are_separate() -> None:
    results = {
        "baseline": {"a": [[0, 10.0]], "b": [[0, 20.0]], "train": [[0, 1.0]]},
        "v": {"a": [[0, 5.0]], "b": [[0, 40.0]], "train": [[0, 1.0]]},
    }
    splits = {"train": {"role": "train"}, "a": {"role": "test"}, "b": {"role": "test"}}
    result = {"metric": "perplexity", "split": "test", "scores": results, "corpus": {"splits": splits}}
    assert [(pair.evaluation_set, pair.effect) for pair in pair_scores_by_seed(make_findings(result))] == [
        ("a", -0.5),
        ("b", 1.0),
    ]


def test_a_folder_without_findings_or_with_a_different_schema_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"has no findings\.json"):
        findings_view.read_findings(tmp_path)
    write_json(tmp_path / "findings.json", {"schema_version": 99})
    with pytest.raises(RunFolderError, match="has schema version 99"):
        findings_view.read_findings(tmp_path)
    write_json(tmp_path / "findings.json", {"schema": 1})
    with pytest.raises(RunFolderError, match=r"was written by Head to Head 0\.1 \(schema 1\)"):
        findings_view.read_findings(tmp_path)
    (tmp_path / "findings.json").write_text("{")
    with pytest.raises(RunFolderError, match="is corrupted"):
        findings_view.read_findings(tmp_path)
