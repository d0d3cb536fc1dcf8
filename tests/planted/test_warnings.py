"""Variants that changed nothing and implausible scores cause warnings; correct experiments cause none."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headtohead.cli.run import build_outcome_json
from headtohead.experiment.schemas import Findings
from headtohead.report import terminal
from headtohead.report.context import ReportContext
from headtohead.report.documents import render_markdown_document
from headtohead.report.page import render_page
from headtohead.runner.api.results import Results

from .run import NETWORKS, compute_findings, draw_rows, write_corpus


@pytest.fixture(scope="module")
def no_change(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    folder = tmp_path_factory.mktemp("no_change")
    variants = {
        "ignored-option": {"model": {"options": {"window": 3}}},
        "other-parameters": {"model": {"module": f"{NETWORKS}:SpareParameters"}},
        "scoring": {"model": {"module": f"{NETWORKS}:ScoresSharper"}},
        "late": {"model": {"module": f"{NETWORKS}:ChangesLater"}},
        "real": {"model": {"options": {"width": 12}}},
        "lr": {"training": {"optimizer": {"kind": "adamw", "lr": 0.005}}},
    }
    return compute_findings(folder / "runs", write_corpus(folder / "text"), variants=variants)


def test_variants_that_changed_nothing_are_reported(no_change: Findings) -> None:
    warnings = {row.variant: f"{row.kind}: {row.message}" for row in no_change.warnings if row.kind != "weak baseline"}
    assert warnings == {
        "ignored-option": "changed nothing: ignored-option (model.options): trained weights and test losses are equal "
        "to the baseline's, bit for bit, with every seed.",
        "other-parameters": "changed nothing: other-parameters (model.module): every test loss is equal to the "
        "baseline's, with every seed.",
        "scoring": "same weights: scoring (model.module): the trained weights are equal to the baseline's, with every "
        "seed: only scoring is different.",
        "late": "same first step: late (model.module): loss and gradients of the first training step are equal to the "
        "baseline's, with every seed.",
    }


def test_warnings_are_in_report_terminal_json_and_python(
    no_change: Findings, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "trained weights and test losses are equal to the baseline"
    page = render_page(no_change)
    assert "Changed nothing:" in page and words in page.split("<h2")[0]
    runs: Any = SimpleNamespace(experiment=no_change.experiment, folder=Path("runs"))
    outcome = SimpleNamespace(findings=no_change, runs=runs, failed_jobs=[])
    terminal.print_experiment_outcome(outcome, None)
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.index(words) < printed.index("ignored-option: ", printed.index("Check that the model"))
    assert words in str(build_outcome_json(outcome, None)["warnings"])
    assert words in render_markdown_document(ReportContext(no_change))
    results = Results(runs, no_change)
    assert words in str(results.warnings) and words in str(results)


def test_a_baseline_worse_than_a_guess_and_a_large_gain_are_reported(tmp_path: Path) -> None:
    """This was reported as "helped 87.4 %" without a warning about the baseline."""
    findings = compute_findings(
        tmp_path / "runs",
        write_corpus(tmp_path / "text"),
        model={"module": f"{NETWORKS}:Overconfident", "context": 24},
        variants={"plain": {"model": {"module": f"{NETWORKS}:Decoder"}}},
        seeds=3,
    )
    assert findings.verdicts[0].outcome == "helped"
    kinds = {warning.kind: warning for warning in findings.warnings}
    assert "a uniform guess" in kinds["weak baseline"].message and "token pairs" in kinds["weak baseline"].message
    assert "learning rate" in kinds["weak baseline"].advice
    assert "% lower, an unusually large gain" in kinds["large gain"].message
    assert "can see what it predicts" in kinds["large gain"].advice


def test_a_test_text_that_is_easier_than_train_is_reported(tmp_path: Path) -> None:
    easy = [" ".join([f"w{i % 30}", *["w1", "w4"] * 11, f"w{i // 30}"]) for i in range(40)]
    rows = draw_rows(200)
    corpus = write_corpus(tmp_path / "text", train=rows + easy, validation=easy[:5], test=[f"{row} w2" for row in easy])
    findings = compute_findings(
        tmp_path / "runs",
        corpus,
        variants={"wide": {"model": {"options": {"width": 20}}}},
        training={"budget": "60 steps", "batch_size": 8, "optimizer": {"kind": "adamw", "lr": 0.02}},
        seeds=1,
    )
    messages = [warning.message for warning in findings.warnings if warning.kind == "test below train"]
    assert len(messages) == 2 and "nats below its loss on the training data" in messages[0]


def test_a_correct_experiment_has_no_warnings(tmp_path: Path) -> None:
    findings = compute_findings(
        tmp_path / "runs",
        write_corpus(tmp_path / "text", train=draw_rows(600)[:560]),
        variants={"wide": {"model": {"options": {"width": 24}}}},
        training={"budget": "120 steps", "batch_size": 16, "optimizer": {"kind": "adamw", "lr": 0.02}},
        seeds=1,
    )
    assert findings.warnings == []


def test_scores_that_are_not_finite_are_an_outcome_with_a_sentence(tmp_path: Path) -> None:
    """Training failed with "Out of range float values are not JSON compliant", judging with "invalid scores"."""
    corpus, forbidden = write_corpus(tmp_path / "text"), {"module": f"{NETWORKS}:ForbiddenToken", "context": 24}
    variants = {name: {"model": {"module": f"{NETWORKS}:{name}"}} for name in ("ForbiddenToken", "NotANumber")}
    findings = compute_findings(tmp_path / "variants", corpus, variants=variants)
    for verdict in findings.verdicts:
        assert verdict.outcome == "not comparable" and "has test losses that are not finite" in verdict.summary
    assert "NotANumber" in render_page(findings)
    variants = {"plain": {"model": {"module": f"{NETWORKS}:Decoder"}}}
    findings = compute_findings(tmp_path / "baseline", corpus, model=forbidden, variants=variants)
    assert findings.verdicts[0].summary.endswith("the baseline has test losses that are not finite.")
    assert "not finite" in render_page(findings)
