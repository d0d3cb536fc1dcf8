"""Analyses, removed variants and lost runs of a whole experiment, through the command line and its journal."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headtohead.cli import app
from headtohead.experiment.journal import Journal
from headtohead.experiment.recorded_analyses import read_alpha_budget
from headtohead.experiment.schemas import AnalysisEvent, Findings, Record, RunEvent, SettingsEvent
from headtohead.runner.api.results import read_results
from headtohead.runner.run_experiment import run_experiment

pytestmark = pytest.mark.usefixtures("in_process_workers")

EXPERIMENT = """
question = "Does it help?"
task = "language-model"
data = {{ source = "{source}", allow_overlap = true }}
model = {{ width = 16, layers = 1, heads = 2, context = 8 }}
training = {{ budget = "{steps} steps", batch_size = 8, optimizer = {{ kind = "adamw", lr = 0.01 }} }}
"""
VARIANTS = {
    "alibi": 'model.position = "alibi"',
    "rope": 'model.position = "rope"',
    "untrained": 'training.optimizer = { kind = "adamw", lr = 1e-9 }',
    "diverging": 'training.optimizer = { kind = "sgd", lr = 1e30 }',
}


def write_experiment(path: Path, source: Path, variants: list[str], steps: int = 10) -> Path:
    tables = "".join(f"[variants.{name}]\n{VARIANTS[name]}\n" for name in variants)
    path.write_text(EXPERIMENT.format(source=source, steps=steps) + tables)
    return path


def run_cli(*arguments: str | Path, exit_code: int = 0) -> dict[str, Any]:
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert result.exit_code == exit_code, result.output
    output: dict[str, Any] = json.loads(result.stdout)
    return output


def read_analysis_events(folder: Path) -> list[AnalysisEvent]:
    return [event for event in Journal(folder).read() if isinstance(event, AnalysisEvent)]


def read_verdicts(folder: Path) -> dict[str, dict[str, Any]]:
    return {row["variant"]: row for row in json.loads((folder / "findings.json").read_text())["verdicts"]}


def test_added_seeds_and_removed_variants_are_charged(text_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    file = write_experiment(tmp_path / "small.toml", text_folder, ["alibi", "rope"])
    run_cli("run", file, "--out", folder, "--seeds", "3")
    first, later = 0.05 * (1 - 2 / 3), 0.85 * 0.05 * (2 / 3 - 2 / 5)
    assert read_verdicts(folder)["alibi"]["adjusted_confidence"] == pytest.approx(1 - first / 2)

    run_cli("run", file, "--out", folder, "--seeds", "5", "--resume")
    assert read_verdicts(folder)["alibi"]["adjusted_confidence"] == pytest.approx(1 - later / 2)
    assert [event.seeds for event in read_analysis_events(folder)] == [
        {"alibi": 3, "rope": 3},
        {"alibi": 5, "rope": 5},
    ]

    before = read_verdicts(folder)["alibi"]
    write_experiment(file, text_folder, ["alibi"])
    run_cli("run", file, "--out", folder, "--seeds", "5", "--resume")
    assert read_verdicts(folder) == {"alibi": before}
    assert before["comparisons"] == 2
    run_cli("report", folder)
    assert len(read_analysis_events(folder)) == 2, "the report of the same runs is no analysis"


def test_every_comparison_that_ever_ran_is_counted(tmp_path: Path) -> None:
    """A variant counts from its first run, once per version of the variant or of the baseline."""

    def count(*events: Record) -> int:
        for event in events:
            Journal(tmp_path).append(event)
        return read_alpha_budget(tmp_path, ["kept"], num_planned_seeds=3).num_comparisons

    def build_settings(**digests: str) -> SettingsEvent:
        return SettingsEvent(digest="", trials=digests, seeds=3, variants=[*digests], versions={})

    def build_run(variant: str) -> RunEvent:
        return RunEvent(status="started", variant=variant, seed=0)

    assert count(build_settings(baseline="a", kept="b", removed="c"), build_run("baseline"), build_run("kept")) == 1
    assert count(build_run("removed")) == 2
    assert count(build_settings(baseline="a", kept="b")) == 2
    assert count(build_settings(baseline="a", kept="edited"), build_run("kept")) == 3
    assert count(build_settings(baseline="edited", kept="edited")) == 4


def test_an_edited_variant_counts_as_another_comparison(text_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    file = write_experiment(tmp_path / "small.toml", text_folder, ["alibi"])
    run_cli("run", file, "--out", folder, "--seeds", "3")
    assert read_verdicts(folder)["alibi"]["comparisons"] == 1
    file.write_text(file.read_text().replace('"alibi"', '"sinusoidal"'))
    shutil.rmtree(folder / "alibi")  # with the runs of the first version, --resume refuses
    run_cli("run", file, "--out", folder, "--seeds", "3", "--resume")
    assert read_verdicts(folder)["alibi"]["comparisons"] == 2


def test_an_interrupted_experiment_is_not_judged_from_python(text_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    file = write_experiment(tmp_path / "small.toml", text_folder, ["alibi"])
    run_cli("run", file, "--out", folder, "--seeds", "3")
    assert read_results(folder).verdicts[0].outcome not in ("quick look", "not comparable")
    # A folder without a recorded analysis, as if the command had been interrupted before the verdict
    lines = (folder / "journal.jsonl").read_text().splitlines()
    (folder / "journal.jsonl").write_text("\n".join(line for line in lines if '"analysis"' not in line) + "\n")
    (verdict,) = read_results(folder).verdicts
    assert verdict.outcome == "quick look"
    assert "so far (3 seeds" in verdict.summary


def test_variants_without_a_successful_run_hurt(text_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    file = write_experiment(tmp_path / "small.toml", text_folder, ["untrained", "diverging"], steps=60)
    run_cli("run", file, "--out", folder, "--seeds", "5", exit_code=1)
    for name, verdict in read_verdicts(folder).items():
        assert (verdict["outcome"], verdict["runs"], verdict["lost_runs"]) == ("hurt", 5, 5)
        assert verdict["interval"] == [None, None]
        # The smallest p value of the rank-sum test with 5 runs of each side is 2 of 252.
        assert verdict["summary"] == (
            f"{name} hurt: 5 of 5 runs were lost (baseline: 0 of 5), which leaves 0 pairs where an interval needs 3 "
            "(rank-sum test with lost runs ranked worst: p = 0.0079, significance level 0.015, one of 2 comparisons "
            "with 95 % joint confidence). Failure rates up to 100 % cannot be excluded."
        )
    page = (folder / "report.html").read_text()
    assert page.count("untrained hurt") >= 1


def test_a_report_of_a_running_experiment_is_no_analysis(small: Any, tmp_path: Path) -> None:
    folder, reports = tmp_path / "runs", []

    def write_report(jobs: Any) -> None:
        if not reports and all(job.state == "finished" for job in jobs):
            reports.append(CliRunner().invoke(app, ["report", str(folder), "--out", str(tmp_path / "report")]))

    outcome = run_experiment(
        small(seeds=3, training={"budget": "10 steps"}), folder, num_workers=2, on_update=write_report
    )
    (report,) = reports
    assert report.exit_code == 0, report.output
    assert "The experiment is running: 6 of up to 6 trials have finished." in report.stderr
    page = (tmp_path / "report" / "report.html").read_text()
    assert "The experiment is running" in page
    assert "so far (3 seeds" in page
    assert isinstance(outcome.findings, Findings)
    assert outcome.findings.verdicts[0].adjusted_confidence == pytest.approx(1 - 0.05 / 3)
    assert len(read_analysis_events(folder)) == 1


def test_confirmatory_comparisons_and_claims_share_the_error_rate(small: Any, tmp_path: Path) -> None:
    claim = {"source": "X", "statement": "faster", "variant": "alibi", "expected_verdict": "helped", "step": 5}
    experiment = small(
        seeds=3,
        data={"monitor": ["test"]},
        training={"budget": "10 steps", "eval_every": 5},
        variants={name: {"model": {"position": name}} for name in ("alibi", "rope")},
        comparisons=[
            {"title": "named", "baseline": "alibi", "variants": ["rope"], "confirmatory": True},
            {"title": "also", "baseline": "rope", "variants": ["alibi"]},
            {"title": "again", "variants": ["alibi"]},
        ],
        claims=[{**claim, "confirmatory": True}, claim],
    )
    findings = run_experiment(experiment, tmp_path / "runs", num_workers=2).findings
    assert findings is not None
    # Two variants, one comparison among them and one claim about a step
    assert [verdict.comparisons for verdict in findings.verdicts] == [4, 4]
    assert findings.verdicts[0].adjusted_confidence == pytest.approx(1 - 0.05 / 3 / 4)
    assert [row.verdicts[0].is_exploratory for row in findings.comparisons] == [False, True, False]
    assert findings.comparisons[2].verdicts[0] == findings.verdicts[0], "one interval, wherever it is shown"
    assert [row.is_exploratory for row in findings.claims] == [False, True]
