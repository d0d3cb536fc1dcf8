"""Trials in this process give the numbers of worker processes."""

from pathlib import Path

from headtohead.runner.run_experiment import run_experiment


def test_inline_trials_equal_those_of_workers(small, tmp_path: Path) -> None:
    experiment = small(seeds=1)
    outcome = run_experiment(experiment, tmp_path / "inline", backend="inline")
    assert not outcome.failed_jobs and {job.state for job in outcome.jobs} == {"finished"}
    run_experiment(experiment, tmp_path / "workers", num_workers=1)
    for scores in (tmp_path / "inline").rglob("scores.safetensors"):
        path = scores.relative_to(tmp_path / "inline")
        assert scores.read_bytes() == (tmp_path / "workers" / path).read_bytes()
