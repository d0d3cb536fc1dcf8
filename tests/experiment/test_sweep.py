"""A sweep runs every cell as a separate experiment, resumes after a kill, and is verified as a whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headtohead.experiment.run_folder import open_experiment_runs
from headtohead.experiment.schemas import Findings
from headtohead.findings.compute import compute_findings
from headtohead.report import write
from headtohead.report.sweep_sentences import describe_sweep
from headtohead.runner.run_experiment import run_experiment
from headtohead.runner.verification.verify import verify_experiment

pytestmark = pytest.mark.usefixtures("in_process_workers")

BUDGETS = {"training": {"budget": ["10 steps", "20 steps"]}}


@pytest.fixture
def sweep_folder(small: Any, tmp_path: Path) -> Path:
    """Return the folder of a finished sweep over two budgets."""
    run_experiment(small(seeds=3, sweep=BUDGETS), tmp_path / "sweep", num_workers=1)
    return tmp_path / "sweep"


def read_findings(folder: Path) -> Findings:
    return compute_findings(open_experiment_runs(folder))


def test_a_sweep_from_its_cells_to_its_report(sweep_folder: Path, small: Any) -> None:
    sweep = read_findings(sweep_folder).sweep
    assert sweep is not None
    assert [(cell.name, cell.steps) for cell in sweep.cells] == [("budget-10-steps", 10), ("budget-20-steps", 20)]
    for cell in sweep.cells:
        cell_findings = read_findings(sweep_folder / "cells" / cell.name)
        assert cell.verdicts == cell_findings.verdicts and cell.verdicts[0].variant == "alibi"
    (summary,) = sweep.summaries
    (trend,) = summary.trends
    effects = [cell.verdicts[0].effect for cell in sweep.cells]
    assert [level.effect for level in trend.levels] == pytest.approx(effects)
    assert summary.cells == 2 and summary.better == sum(effect < 0 for effect in effects)
    assert summary.prediction is None, "one corpus says nothing about others"
    sentences = " ".join(describe_sweep(sweep, "perplexity")["alibi"])
    assert "All cells use the same corpus" in sentences and "From 10 to 20 steps, the change goes from" in sentences
    page = write(sweep_folder, ["html", "md"])[0].read_text()
    assert "Verdicts in every cell" in page and "10 steps" in page
    assert not [check for check in verify_experiment(sweep_folder, render_report=write) if not check.passed]

    # A killed sweep continues where it stopped, and values may be added.
    process = sweep_folder / "cells" / "budget-20-steps" / "alibi" / "seed-2"
    remaining = sweep_folder / "cells" / "budget-10-steps" / "alibi" / "seed-2" / "result.json"
    before = remaining.stat().st_mtime_ns
    (process / "result.json").unlink()
    longer = small(seeds=3, sweep={"training": {"budget": ["10 steps", "20 steps", "30 steps"]}})
    outcome = run_experiment(longer, sweep_folder, num_workers=1, resume=True)
    assert sum(job.state == "finished" for job in outcome.jobs) == 1 + 2 * 3
    assert remaining.stat().st_mtime_ns == before
    assert outcome.findings is not None and outcome.findings.sweep is not None
    assert len(outcome.findings.sweep.cells) == 3

    # An edited cell is found from the folder of the sweep.
    path = sweep_folder / "cells" / "budget-10-steps" / "findings.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "split": "train"}))
    failed = [check.location for check in verify_experiment(sweep_folder) if not check.passed]
    assert any(location.startswith("cells/budget-10-steps/findings.json") for location in failed)


def test_cells_that_have_not_started_are_reported(sweep_folder: Path, tmp_path: Path) -> None:
    (sweep_folder / "cells" / "budget-20-steps").rename(tmp_path / "elsewhere")
    sweep = read_findings(sweep_folder).sweep
    assert sweep is not None
    assert [cell.message for cell in sweep.cells] == ["", "not started"]
    assert sweep.summaries[0].cells == 1 and not sweep.summaries[0].trends
