"""Documents as the sampling unit of new text: coverage for few and for unequal documents, and the sentences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headtohead.errors import ScoresError
from headtohead.verdict.compare import compare_scores
from headtohead.verdict.external_scores.judge_csv import judge_csv
from headtohead.verdict.intervals import compute_interval
from headtohead.verdict.scores import Scores
from headtohead.verdict.variance_components import estimate_variance_components

EXPERIMENTS = 2000


def sample_documents(
    rng: np.random.Generator, seeds: int, documents: int, variances: tuple[float, float, float], length_spread: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return totals (experiments, seeds, documents) and lengths.

    Half of the document variance is between its examples.
    """
    weights = np.exp(length_spread * rng.standard_normal((EXPERIMENTS, documents)))
    relative = (weights / weights.mean(axis=1, keepdims=True))[:, None]
    from_seeds, from_documents, residual = variances
    noise = rng.standard_normal((2, EXPERIMENTS, 1, documents))
    rates = np.sqrt(from_seeds * seeds) * rng.standard_normal((EXPERIMENTS, seeds, 1))
    rates = rates + np.sqrt(from_documents * documents / 2) * (noise[0] + noise[1] / np.sqrt(relative))
    rates = rates + np.sqrt(residual * seeds * documents / relative) * rng.standard_normal(
        (EXPERIMENTS, seeds, documents)
    )
    return rates * weights[:, None], weights


@pytest.mark.parametrize("length_spread", [0.0, 0.5], ids=["equal", "unequal"])
@pytest.mark.parametrize("documents", [2, 3, 5, 10, 30])
def test_the_interval_for_new_text_covers_the_truth(documents: int, length_spread: float) -> None:
    rng = np.random.default_rng(documents)
    error = 2.5 * np.sqrt(0.05 * 0.95 / EXPERIMENTS)
    for seeds in (3, 8):
        for variances in ((1.0, 0.1, 0.3), (0.3, 1.0, 0.3), (0.1, 1.0, 0.0), (0.3, 0.3, 1.0)):
            components = estimate_variance_components(
                *sample_documents(rng, seeds, documents, variances, length_spread)
            )
            coverage = (np.abs(components.difference) <= compute_interval(components, 0.95).half_width).mean()
            assert coverage >= 0.935 - error, (seeds, variances)
            assert documents < 10 or coverage <= 0.97 + error, (seeds, variances)


def make_corpora(*effects: float, blocks: int = 1) -> tuple[Scores, Scores]:
    """Simulate a variant that changes the loss of each document by nearly the same amount for every seed."""
    rng = np.random.default_rng(0)
    shape = (5, len(effects) * blocks)
    base = 4 + rng.normal(0, 0.1, shape)
    change = np.repeat(effects, blocks) + rng.normal(0, 0.003, shape)
    documents = tuple(np.repeat([f"text {index}" for index in range(len(effects))], blocks)) if blocks > 1 else ()
    weights = np.ones(shape[1])
    seeds = tuple(range(5))
    return Scores(seeds, base, weights, (), documents), Scores(seeds, base + change, weights, (), documents)


def test_three_documents_that_disagree_say_nothing_about_new_text() -> None:
    baseline, variant = make_corpora(-0.10, 0.02, -0.20)
    (verdict,) = compare_scores(baseline, {"x": variant}, metric="loss", equivalence_margin=0.01)
    assert verdict.outcome == "cannot tell"
    assert verdict.interval[0] < -0.3 < 0.1 < verdict.interval[1]
    assert verdict.seed_interval[1] < 0
    assert verdict.summary.startswith("x: on these 3 examples, loss 0.09")
    assert "For new text the interval runs from" in verdict.summary


def test_blocks_of_a_document_are_no_new_documents() -> None:
    baseline, variant = make_corpora(-0.10, 0.02, -0.20, -0.15, 0.03, -0.05, blocks=50)
    (complete,) = compare_scores(baseline, {"x": variant}, metric="loss", equivalence_margin=0.01)
    blocks = {"x": Scores(variant.seeds, variant.values, variant.weights)}
    (apart,) = compare_scores(
        Scores(baseline.seeds, baseline.values, baseline.weights), blocks, metric="loss", equivalence_margin=0.01
    )
    assert (complete.documents, complete.examples, apart.documents) == (6, 300, 300)
    assert (complete.outcome, apart.outcome) == ("cannot tell", "helped")
    assert "5 seeds, 6 documents" in complete.summary
    assert "score" not in complete.reason or "more documents" in complete.reason


def test_few_documents_that_agree_are_named_first() -> None:
    baseline, variant = make_corpora(-0.100, -0.101, -0.099, blocks=4)
    (verdict,) = compare_scores(baseline, {"x": variant}, metric="loss", equivalence_margin=0.01)
    assert verdict.outcome == "helped"
    assert verdict.summary.startswith("x helped: on these 3 documents, loss 0.09974 lower (97 % confidence interval")
    assert "For new text the interval is 0.0" in verdict.summary


@pytest.mark.parametrize(("documents", "is_named"), [(4, False), (5, True), (10, True), (11, False)])
def test_settled_verdicts_from_5_to_10_documents_name_the_effect_of_skewness(documents: int, is_named: bool) -> None:
    caveat = f"With {documents} examples, the interval is too narrow if the difference is far larger for a few examples"
    spread = 0.001 * np.arange(documents)
    for effects, outcome in ((-0.1 + spread, "helped"), (100 * (spread - spread.mean()), "cannot tell")):
        baseline, variant = make_corpora(*effects)
        (verdict,) = compare_scores(baseline, {"x": variant}, metric="loss", equivalence_margin=0.01)
        assert verdict.outcome == outcome
        assert (caveat in verdict.summary) == (is_named and outcome == "helped")


def test_one_document_is_judged_by_its_seeds_alone() -> None:
    baseline, variant = make_corpora(-0.10, blocks=20)
    (verdict,) = compare_scores(baseline, {"x": variant}, metric="loss", equivalence_margin=0.01)
    assert verdict.interval == verdict.seed_interval
    assert "from one document, so this holds for this document, not for new text" in verdict.summary


def test_the_order_of_examples_does_not_matter() -> None:
    baseline, variant = make_corpora(-0.10, 0.02, -0.20, blocks=5)
    order = np.random.default_rng(1).permutation(15)

    def shuffle(scores: Scores) -> Scores:
        documents = tuple(np.array(scores.documents)[order])
        return Scores(scores.seeds, scores.values[:, order], scores.weights[order], (), documents)

    (plain,) = compare_scores(baseline, {"x": variant}, metric="loss", equivalence_margin=0.01)
    (mixed,) = compare_scores(shuffle(baseline), {"x": shuffle(variant)}, metric="loss", equivalence_margin=0.01)
    assert mixed.interval == pytest.approx(plain.interval)


def test_variants_must_agree_on_the_documents() -> None:
    baseline, variant = make_corpora(-0.10, 0.02, blocks=2)
    other = Scores(variant.seeds, variant.values, variant.weights, (), ("a", "b", "a", "b"))
    with pytest.raises(ScoresError, match="x: its examples belong to other documents"):
        compare_scores(baseline, {"x": other}, metric="loss", equivalence_margin=0.01)
    with pytest.raises(ScoresError, match="2 document names for 4 weights"):
        Scores(variant.seeds, variant.values, variant.weights, (), ("a", "b"))


def write_csv(path: Path, columns: str, documents: list[str]) -> Path:
    rng = np.random.default_rng(0)
    lines = [columns]
    for variant, effect in (("baseline", 0.0), ("x", -0.1)):
        for seed in range(4):
            for index, document in enumerate(documents):
                loss = 4 + effect * (1 + index % 2) + rng.normal(0, 0.01)
                cells = {"variant": variant, "seed": seed, "example": index, "document": document, "loss": loss}
                lines.append(",".join(str(cells[name]) for name in columns.split(",")))
    path.write_text("\n".join(lines))
    return path


def test_a_document_column_names_the_documents(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "s.csv", "variant,seed,example,document,loss", ["a", "a", "b", "b", "c", "c"] * 2)
    (verdict,) = judge_csv(path, equivalence_margin=0.01)
    assert (verdict.documents, verdict.examples) == (3, 12)
    path = write_csv(tmp_path / "d.csv", "variant,seed,document,loss", list("abcdefg"))
    (verdict,) = judge_csv(path, equivalence_margin=0.01)
    assert (verdict.documents, verdict.examples) == (7, 7)


def test_an_example_belongs_to_one_document(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "s.csv", "variant,seed,example,document,loss", ["a", "b", "c"])
    path.write_text(path.read_text().replace("x,3,2,c", "x,3,2,d").replace("x,2,1,b", "x,2,1,"))
    with pytest.raises(ScoresError, match=r"(?s)the document is empty.*example 2 is from document d, but c at line 4"):
        judge_csv(path, equivalence_margin=0.01)
