"""Mistakes in comparisons of scripts: none of them may lead to a confident verdict without a warning.

In each comparison baseline and variant train equally well, so any effect is caused by the mistake.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from headtohead.experiment.schemas import Findings
from headtohead.versus.config import build_comparison_config
from headtohead.versus.findings.compute import write_findings
from headtohead.versus.run_comparison import run_comparison

TRAINING = """
import argparse, json, os, pathlib, random
parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--data", default="a")
parser.add_argument("--mistake", action="store_true")
parser.add_argument("--other", action="store_true", help="changes nothing but the random numbers")
arguments = parser.parse_args()
noise = random.Random(f"{arguments.seed} {arguments.other}")
def compute_loss(step):
    return 2 + 8 / (4 + step) + noise.gauss(0, 0.02)
def report(step, loss):
    print(f"step {step}: train loss {loss - 0.5:.4f}, val loss {loss:.4f}")
"""
TRAIN = """
for step in range(0, arguments.steps + 1, 20):
    report(step, compute_loss(step))
"""


def compare(
    folder: Path, script: str, *, baseline: str = "", variant: str = "", metric: str = "val_loss", **settings: str
) -> Findings:
    """Compare two commands with the same script that differ by `--other` and by the given arguments."""
    (folder / "train.py").write_text(TRAINING + script)
    command = f"{sys.executable} train.py --seed {{seed}}"
    comparison_settings = {
        "metric": {"name": metric, **settings},
        "baseline": f"{command} {baseline}",
        "variants": {"variant": f"{command} --other {variant}"},
    }
    config = build_comparison_config(comparison_settings, "test")
    return write_findings(run_comparison(folder / "out", config, directory=folder))


def list_warnings(findings: Findings) -> dict[str, str]:
    """Return the message of each warning by its kind."""
    return {warning.kind: warning.message for warning in findings.warnings}


def test_a_correct_comparison_has_no_warning(tmp_path: Path) -> None:
    findings = compare(tmp_path, TRAIN)
    assert findings.verdicts[0].outcome == "cannot tell"
    assert findings.warnings == []


def test_options_that_name_other_data_are_stated(tmp_path: Path) -> None:
    findings = compare(tmp_path, TRAIN, baseline="--data a.txt", variant="--data b.txt")
    (warning,) = findings.warnings
    assert (warning.kind, warning.variant) == ("different data", "variant")
    assert "--data a.txt and b.txt" in warning.message


SPLITS = """
for step in range(0, 61, 20):
    loss = compute_loss(step)
    print(f"step {step} train: loss {loss - 0.5:.4f}" if arguments.mistake else f"step {step} val: loss {loss:.4f}")
"""


def test_a_metric_of_a_different_split_is_not_comparable(tmp_path: Path) -> None:
    findings = compare(tmp_path, SPLITS, variant="--mistake", metric="loss")
    (verdict,) = findings.verdicts
    assert verdict.outcome == "not comparable"
    assert verdict.withheld == ("reports loss on the train split, and baseline on the validation split",)


def test_a_metric_of_several_splits_is_rejected_after_one_run(tmp_path: Path) -> None:
    findings = compare(tmp_path, TRAIN, metric="loss")
    assert findings.verdicts == []
    (failure,) = findings.failures
    assert "'loss' is ambiguous" in failure.message


def test_longer_training_is_stated(tmp_path: Path) -> None:
    findings = compare(tmp_path, TRAIN, variant="--steps 120")
    (warning,) = findings.warnings
    assert warning.kind == "different budget"
    assert warning.message == "baseline reports 4 values up to step 60, variant 7 up to step 120."


OTHER_STEPS = """
for step in range(0, 61, 20 if not arguments.mistake else 15):
    report(step, compute_loss(step))
"""


def test_a_metric_at_other_steps_is_stated(tmp_path: Path) -> None:
    findings = compare(tmp_path, OTHER_STEPS, aggregate="best", variant="--mistake")
    assert set(list_warnings(findings)) == {"different budget"}


CONTINUED = """
checkpoint = pathlib.Path("checkpoint.json")
start = json.loads(checkpoint.read_text()) if checkpoint.is_file() else 0
for step in range(start, start + 61, 20):
    report(step STATED, compute_loss(step))
checkpoint.write_text(json.dumps(start + 60))
"""


def test_runs_that_continue_from_a_checkpoint_of_another_run_are_not_comparable(tmp_path: Path) -> None:
    findings = compare(tmp_path, CONTINUED.replace("STATED", ""))
    (verdict,) = findings.verdicts
    assert verdict.outcome == "not comparable"
    assert "some may have resumed from a checkpoint of another run" in verdict.reason
    assert {"not repeatable", "shared files"} <= set(list_warnings(findings))


def test_a_checkpoint_without_stated_steps_is_detected(tmp_path: Path) -> None:
    findings = compare(tmp_path, CONTINUED.replace("STATED", "- start"))
    assert findings.verdicts[0].outcome in ("not comparable", "cannot tell")
    message = "Runs of variant write files that other runs write or read: checkpoint.json."
    assert list_warnings(findings)["shared files"] == message
    assert list_warnings(findings)["not repeatable"].startswith("Seed 0 gives 2.1")


CACHED = """
cache = pathlib.Path(f"cache-{arguments.seed}.json")
if arguments.mistake and cache.is_file():
    losses = [loss - 0.1 for loss in json.loads(cache.read_text())]
else:
    losses = [compute_loss(step) for step in range(0, 61, 20)]
    cache.write_text(json.dumps(losses))
for step, loss in enumerate(losses):
    report(20 * step, loss)
"""


def records_access(folder: Path) -> bool:
    """Return whether the file system records reads that follow a write."""
    path = folder / "probe"
    path.write_text("x")
    time.sleep(0.05)
    path.read_text()
    return path.stat().st_atime_ns > path.stat().st_mtime_ns


def test_files_that_runs_leave_behind_are_stated(tmp_path: Path) -> None:
    if not records_access(tmp_path):
        pytest.skip("this file system records no times of access")
    findings = compare(tmp_path, CACHED, variant="--mistake")
    message = "Runs of variant write files that other runs write or read: cache-0.json"
    assert list_warnings(findings)["shared files"].startswith(message)
    answers = {item.question: item.answer for item in findings.versus.observations}
    assert "cache-0.json, cache-1.json" in answers["What did runs write outside of {out}?"]


RESULT_FILE = """
if not arguments.mistake or arguments.seed == 0:
    pathlib.Path("result.json").write_text(json.dumps({"val_loss": compute_loss(60)}))
"""
LOG_FILE = """
with open("log.jsonl", "a") as log:
    for step in range(0, 61, 20):
        print(json.dumps({"step": step, "val_loss": compute_loss(step)}), file=log)
"""


def test_a_result_file_that_a_run_does_not_write_is_no_result(tmp_path: Path) -> None:
    findings = compare(tmp_path, RESULT_FILE, file="result.json", variant="--mistake")
    messages = [failure.message for failure in findings.failures if failure.variant == "variant"]
    assert len(messages) == 4
    assert all("result.json was not written by this run" in message for message in messages)
    assert findings.verdicts[0].outcome == "too few seeds"


def test_a_log_that_all_runs_append_to_is_rejected(tmp_path: Path) -> None:
    findings = compare(tmp_path, LOG_FILE, file="log.jsonl")
    assert findings.verdicts[0].outcome == "not comparable"
    assert "log.jsonl still holds the values of earlier runs" in findings.failures[0].message


def test_seeds_that_only_the_variant_ignores_are_detected(tmp_path: Path) -> None:
    findings = compare(tmp_path, "noise.seed(7) if arguments.mistake else None" + TRAIN, variant="--mistake")
    (verdict,) = findings.verdicts
    assert verdict.outcome == "not comparable"
    assert "every seed gives exactly the same values" in verdict.reason


def test_seeds_that_are_used_in_part_are_stated(tmp_path: Path) -> None:
    findings = compare(
        tmp_path, "noise.seed(arguments.seed % 2) if arguments.mistake else None" + TRAIN, variant="--mistake"
    )
    assert list_warnings(findings)["equal seeds"] == "3 of 5 seeds of variant give the same values."


EDITED = """
if arguments.mistake and arguments.seed == 1:
    path = pathlib.Path("FILE")
    path.write_text(path.read_text() + "# edited while it runs")
"""


def test_a_script_that_changes_while_it_is_compared_is_not_comparable(tmp_path: Path) -> None:
    findings = compare(tmp_path, EDITED.replace("FILE", "train.py") + TRAIN, variant="--mistake")
    assert findings.verdicts[0].outcome == "not comparable"
    assert "train.py changed while the comparison ran" in findings.verdicts[0].reason


def test_a_module_that_changes_while_it_is_compared_is_stated(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("")
    findings = compare(tmp_path, EDITED.replace("FILE", "model.py") + TRAIN, variant="--mistake")
    assert list_warnings(findings)["changed code"] == "model.py changed while the comparison ran."


def test_a_direction_against_the_name_of_the_metric_is_stated(tmp_path: Path) -> None:
    assert set(list_warnings(compare(tmp_path, TRAIN, direction="maximize"))) == {"unusual direction"}


EXAMPLES = """
losses = [compute_loss(60) - 0.5 * arguments.mistake for _ in range(20)]
rows = [{"example": index, "score": loss} for index, loss in enumerate(losses)]
pathlib.Path(os.environ["H2H_OUT"], "scores.jsonl").write_text("\\n".join(map(json.dumps, rows)))
report(60, sum(losses) / 20 + 0.5 * arguments.mistake)
"""


def test_scores_per_example_of_other_data_are_stated(tmp_path: Path) -> None:
    findings = compare(tmp_path, EXAMPLES, example_scores="{out}/scores.jsonl", variant="--mistake")
    (warning,) = findings.warnings
    assert (warning.kind, warning.variant) == ("different scores", "variant")
