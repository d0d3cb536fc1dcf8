import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headtohead.atomic_io import write_json
from headtohead.errors import RunFolderError
from headtohead.experiment import findings_view

from .typed import typed

Findings = dict[str, Any]


def test_the_baseline_comes_first_and_variants_keep_their_order(findings: Callable[..., Findings]) -> None:
    found = findings({"zeta": 0.0, "alpha": 0.0})
    assert findings_view.list_variant_names(typed(found)) == ["baseline", "zeta", "alpha"]


def test_a_curve_s_mean_is_that_of_the_losses_and_its_band_the_range_of_seeds() -> None:
    found = {"metric": "perplexity", "curves": {"baseline": {"test": {"0": [[1, 100.0]], "1": [[1, 400.0]]}}}}
    (point,) = findings_view.compute_learning_curves(typed(found), "test")
    assert (point.mean, point.low, point.high, point.seeds) == (pytest.approx(200.0), 100.0, 400.0, 2)


def test_differences_along_the_way_are_paired_by_seed() -> None:
    # Each seed of the variant is 10 % below the same seed of the baseline; unpaired, the ranges would overlap.
    baseline = {"0": [[1, 100.0]], "1": [[1, 200.0]], "2": [[1, 50.0]]}
    variant = {"0": [[1, 90.0]], "1": [[1, 180.0]], "9": [[1, 1.0]]}
    found = {"metric": "perplexity", "curves": {"baseline": {"t": baseline}, "v": {"t": variant}}}
    (point,) = findings_view.compute_difference_curves(typed(found), "t")
    assert point.mean == pytest.approx(-0.1)
    assert (point.low, point.high) == (pytest.approx(-0.1), pytest.approx(-0.1))
    assert point.seeds == 2


def test_the_loss_of_batches_is_not_taken_for_the_metric() -> None:
    found = {"metric": "accuracy", "curves": {"baseline": {"batches": {"0": [[1, 8.7]]}, "test": {"0": [[1, 0.5]]}}}}
    assert findings_view.list_curve_splits(typed(found)) == ["test"]


def test_pairs_are_taken_from_what_decides_and_else_from_every_held_out_text(
    findings: Callable[..., Findings],
) -> None:
    found = findings({"v": -0.1})
    assert {pair.evaluation_set for pair in findings_view.pair_scores_by_seed(typed(found))} == {"test"}
    assert all(
        pair.effect == pytest.approx(math.expm1(-0.1), abs=0.02)
        for pair in findings_view.pair_scores_by_seed(typed(found))
    )
    found["rows"] = "unseen"
    assert {pair.evaluation_set for pair in findings_view.pair_scores_by_seed(typed(found))} == {"test, all rows"}
    found["primary_scores"] = {"baseline": [[0, 400.0]], "v": [[0, 300.0], [1, 5.0]]}
    assert [(p.evaluation_set, p.seed, p.effect) for p in findings_view.pair_scores_by_seed(typed(found))] == [
        ("test, unseen rows", 0, -0.25)
    ]


def test_pairs_on_several_texts_stay_apart() -> None:
    results = {
        "baseline": {"a": [[0, 10.0]], "b": [[0, 20.0]], "train": [[0, 1.0]]},
        "v": {"a": [[0, 5.0]], "b": [[0, 40.0]], "train": [[0, 1.0]]},
    }
    splits = {"train": {"role": "train"}, "a": {"role": "test"}, "b": {"role": "test"}}
    found = {"metric": "perplexity", "split": "test", "scores": results, "corpus": {"splits": splits}}
    assert [(pair.evaluation_set, pair.effect) for pair in findings_view.pair_scores_by_seed(typed(found))] == [
        ("a", -0.5),
        ("b", 1.0),
    ]


def test_a_folder_without_findings_or_of_another_schema_is_said_so(tmp_path: Path) -> None:
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
