"""Findings: what is computed from the runs, evidence of pairing, and detection of later modifications."""

import json
import math
import statistics
from pathlib import Path

import pytest
from tests.conftest import run_trials_with, write_rows, write_text

import headtohead as h2h
from headtohead import report
from headtohead.errors import RequestError
from headtohead.experiment.run_folder import open_experiment_runs
from headtohead.findings import compute
from headtohead.runner import run_experiment
from headtohead.runner.verification import json_differences, verify


@pytest.fixture(scope="module")
def results(tmp_path_factory, in_process_pool):
    """A small experiment shared by several tests, which copy what they modify."""
    tmp_path = tmp_path_factory.mktemp("finished")
    write_text(tmp_path / "text")
    write_rows(tmp_path / "rows")
    raw = {
        "question": "Does it help?",
        "task": "language-model",
        "seeds": 3,
        "data": {"source": str(tmp_path / "text"), "allow_overlap": True},
        "model": {"width": 16, "layers": 1, "heads": 2, "context": 8},
        "training": {"budget": "40 steps", "batch_size": 8, "eval_every": 20},
        "variants": {
            "alibi": {"model": {"position": "alibi"}},
            "future": {"model": {"merge": {"kind": "reweight"}}},
            "two": {"model": {"position": "rope", "layers": 2}},
        },
        "probe": {"prompts": ["the people"]},
        "published": [{"source": "X", "split": "test", "metric": "perplexity", "value": 12.5}],
    }
    folder = tmp_path / "runs"
    with run_trials_with(in_process_pool):
        return h2h.run(h2h.experiment_from_dict(raw, "small"), folder, workers=2)


def copy_results_folder(results, tmp_path: Path) -> Path:
    import shutil

    return Path(shutil.copytree(results.folder, tmp_path / "copy"))


def test_verdicts_are_plain_objects_in_the_order_of_the_file(results):
    assert [v.variant for v in results.verdicts] == ["alibi", "future", "two"]
    assert all(v.seeds == 3 for v in results.verdicts if v.outcome != "not comparable")
    assert {row["variant"] for row in results.rows()} == {"baseline", "alibi", "future", "two"}


def test_a_variant_that_reads_the_future_is_not_comparable(results):
    words = {v.variant: (v.outcome, v.reason) for v in results.verdicts}
    assert words["future"] == ("not comparable", "reads the future")
    assert words["alibi"][0] != "not comparable"


def test_pairing_is_proven(results):
    pairing = results.findings.pairing
    assert pairing["alibi"].shared_tensors == pairing["alibi"].equal_tensors == pairing["alibi"].tensors > 10
    assert pairing["alibi"].same_batches is True
    assert pairing["alibi"].settings == {"model.position": "alibi"}
    assert pairing["alibi"].changes_multiple_settings is False
    assert pairing["two"].changes_multiple_settings is True
    baseline, variant = pairing["two"].parameters
    assert variant > baseline


def test_broken_pairing_is_detected(results, tmp_path):
    """Mutation: one shared tensor with different initial values, and different batches."""
    folder = copy_results_folder(results, tmp_path)
    start = folder / "alibi" / "seed-1" / "start.json"
    raw = json.loads(start.read_text())
    name = next(iter(raw["tensor_hashes"]))
    raw["tensor_hashes"][name] = raw["tensor_hashes"][name][:-1] + "x"
    raw["schedule_digest"] = "other"
    start.write_text(json.dumps(raw))
    pairing = compute.compute_findings(open_experiment_runs(folder), check_files=False).pairing["alibi"]
    assert pairing.equal_tensors == pairing.shared_tensors - 1
    assert pairing.same_batches is False


def test_unpaired_variants_are_not_comparable(results, tmp_path):
    folder = copy_results_folder(results, tmp_path)
    start = folder / "alibi" / "seed-1" / "start.json"
    raw = json.loads(start.read_text())
    raw["schedule_digest"] = "other"
    start.write_text(json.dumps(raw))
    (alibi, *_) = compute.compute_findings(open_experiment_runs(folder), check_files=False).verdicts
    assert alibi.outcome == "not comparable"
    assert "different batches" in alibi.reason


@pytest.mark.usefixtures("in_process_workers")
def test_variants_that_change_initial_weights_on_purpose_are_comparable(small, tmp_path):
    variants = {
        "small": {"model": {"embedding": {"kind": "table", "std": 0.02}, "position": {"kind": "learned", "std": 0.02}}},
        "wide": {"model": {"width": 24}},
        "long": {"model": {"feedforward": {"kind": "mlp", "hidden": 96}}},
    }
    outcome = h2h.run(small(training={"budget": "2 steps"}, variants=variants), out=tmp_path / "out")
    pairing = outcome.findings.pairing
    assert {name: row.unpaired_reason for name, row in pairing.items()} == dict.fromkeys(variants)
    assert pairing["small"].equal_tensors == pairing["small"].shared_tensors == pairing["small"].tensors - 2
    assert pairing["long"].equal_tensors == pairing["long"].shared_tensors == pairing["long"].tensors - 4


def test_a_published_score_is_compared_with_ours(results):
    (row,) = results.findings.published
    values = [value for _, value in results.findings.scores["baseline"]["test"]]
    assert row.value == 12.5
    assert row.ours == pytest.approx(statistics.geometric_mean(values))
    assert row.interval[0] < row.ours < row.interval[1]


def test_a_trained_model_is_loaded_by_variant_and_seed(results):
    loaded = results.model("alibi", 1)
    assert loaded.tokenizer.encode("the people")
    with pytest.raises(RequestError, match="did you mean 'alibi'"):
        results.model("alibbi")


def test_results_contain_the_audits_of_the_data(results):
    assert results.data_audits == {"baseline": results.findings.data_audits}
    assert {audit.name for audit in results.data_audits["baseline"]}


def test_results_read_from_a_folder_equal_those_of_the_run(results):
    read_results = h2h.read_results(results.folder)
    assert (
        list(json_differences.find_json_differences(read_results.findings.to_json(), results.findings.to_json())) == []
    )
    assert str(read_results) == str(results)


def test_verify_passes_on_unchanged_folders(results):
    checks = verify.verify_experiment(results.folder, rescore=True, num_retrained=1)
    assert [c for c in checks if not c.passed] == []
    assert {c.description for c in checks} >= {"training again", "scores of the saved weights"}


def edit_json(path: Path, *keys: str, value: object) -> None:
    raw = json.loads(path.read_text())
    at = raw
    for key in keys[:-1]:
        at = at[key]
    at[keys[-1]] = value
    path.write_text(json.dumps(raw))


def test_verify_names_every_file_that_was_edited(results, tmp_path):
    folder = copy_results_folder(results, tmp_path)
    run = folder / "alibi" / "seed-2"
    edit_json(run / "result.json", "scores", "test", "perplexity", value=1.5)
    (run / "metrics.jsonl").write_text("")
    (folder / "baseline" / "seed-0" / "scores.safetensors").write_bytes(b"")
    failed = {c.location for c in verify.verify_experiment(folder) if not c.passed}
    assert "alibi/seed-2/result.json" in failed
    assert "alibi/seed-2/metrics.jsonl" in failed
    assert "baseline/seed-0/scores.safetensors" in failed
    assert not any(place.startswith("two/") for place in failed)


def test_verify_finds_edited_findings(results, tmp_path):
    folder = copy_results_folder(results, tmp_path)
    raw = json.loads((folder / "findings.json").read_text())
    raw["verdicts"][0]["outcome"] = "helped" if raw["verdicts"][0]["outcome"] != "helped" else "hurt"
    (folder / "findings.json").write_text(json.dumps(raw))
    failed = [c.location for c in verify.verify_experiment(folder) if not c.passed]
    assert failed == ["findings.json", "findings.json: verdicts[0].outcome"]


def test_verify_finds_an_edited_report(results, tmp_path):
    from headtohead.report import write

    folder = copy_results_folder(results, tmp_path)
    (page,) = write(folder, ["html"])
    assert all(c.passed for c in verify.verify_experiment(folder, render_report=write))
    page.write_text(page.read_text().replace("not comparable", "helped"))
    assert [c.location for c in verify.verify_experiment(folder, render_report=write) if not c.passed] == [
        "report.html"
    ]


def test_results_display_themselves_in_a_notebook(results):
    assert "Does it help?" in results._repr_html_()
    assert len(repr(results)) < 400


def test_curves_costs_and_example_scores_are_rows_of_data_frames(results):
    trials = [(name, seed) for name in results.experiment.names for seed in range(3)]
    curves = results.curves()
    assert all(row.keys() == curves[0].keys() for row in curves)
    assert {(row["variant"], row["seed"]) for row in curves} == set(trials)
    assert {row["step"] for row in curves if row["split"] == "validation"} == {0, 20, 40}
    lines = (results.folder / "alibi" / "seed-1" / "metrics.jsonl").read_text().splitlines()
    losses = [row["loss"] for row in curves if (row["variant"], row["seed"]) == ("alibi", 1)]
    assert losses == [json.loads(line)["loss"] for line in lines]

    costs = results.costs()
    assert [(row["variant"], row["seed"]) for row in costs] == trials
    assert all(row["steps"] == 40 and row["seconds"] > 0 and row["peak_memory"] > 0 for row in costs)
    parameters = {row["variant"]: row["parameters"] for row in costs}
    assert parameters["two"] > parameters["alibi"]

    scores = [row for row in results.example_scores("test") if (row["variant"], row["seed"]) == ("two", 2)]
    assert [row["example"] for row in scores] == list(range(len(scores)))
    (perplexity,) = (
        row["perplexity"] for row in results.rows() if (row["variant"], row["seed"], row["split"]) == ("two", 2, "test")
    )
    mean = sum(row["loss"] for row in scores) / sum(row["count"] for row in scores)
    assert math.exp(mean) == pytest.approx(perplexity)
    with pytest.raises(RequestError, match="no split 'tset'; did you mean 'test'\\?"):
        results.example_scores("tset")


def test_the_table_of_the_curves_is_in_every_format(results, tmp_path):
    folder = copy_results_folder(results, tmp_path)
    paths = {path.name: path for path in report.write(folder, ["html", "md", "tex", "csv"])}
    header = ["variant", "step", "batch loss", "train perplexity"]
    assert f"| {' | '.join(header)}" in paths["report.md"].read_text()
    assert " & ".join(header) in paths["report.tex"].read_text()
    page = paths["report.html"].read_text()
    assert "Scores during training" in page and ">batch loss<" in page
    assert paths["curves.csv"].read_text().splitlines()[0] == "variant,seed,step,split,metric,value"


def test_different_tokenizers_are_compared_per_byte_of_the_same_text(tmp_path, text_folder, in_process_pool):
    raw = {
        "question": "?",
        "task": "language-model",
        "seeds": 2,
        "data": {"source": str(text_folder), "allow_overlap": True},
        "model": {"width": 16, "layers": 1, "heads": 2, "context": 8},
        "training": {"budget": "20 steps"},
        "variants": {"characters": {"data": {"tokenizer": "characters"}}},
    }
    outcome = run_experiment.run_experiment(
        h2h.experiment_from_dict(raw, "tokens"), tmp_path / "runs", backend=in_process_pool
    )
    assert outcome.findings is not None
    (verdict,) = outcome.findings.verdicts
    assert "per byte" in verdict.summary
    # The first row is excluded, because its first token is not predicted.
    size = sum(len(line) for line in (text_folder / "test.txt").read_bytes().splitlines(keepends=True)[1:])
    runs = [open_experiment_runs(tmp_path / "runs").run("baseline", seed).scores for seed in range(2)]
    mean = sum((run["test.losses"] * (1 - run["test.first_row"])).sum() for run in runs) / 2 / size
    assert verdict.baseline_mean == pytest.approx(math.exp(mean))


def test_verify_finds_weights_that_do_not_give_the_scores(results, tmp_path):
    """Weights of another run with a corrected checksum: only rescoring or retraining can detect them."""
    from headtohead.atomic_io import compute_sha256

    folder = copy_results_folder(results, tmp_path)
    run, other = folder / "alibi" / "seed-0", folder / "alibi" / "seed-1"
    (run / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    edit_json(run / "result.json", "sha256", "model.safetensors", value=compute_sha256(run / "model.safetensors"))
    checks = verify.verify_experiment(folder, rescore=True)
    assert any(
        c.location == "alibi/seed-0" and not c.passed and "with the saved weights" in c.observation for c in checks
    )


def test_a_leak_moves_the_verdict_to_unseen_rows(tmp_path, rows_folder, in_process_pool):
    train = (rows_folder / "train.tsv").read_text().splitlines()
    test = (rows_folder / "test.tsv").read_text().splitlines()
    unseen = [f"{line.split(chr(9))[0]}\tnumber {i} {line.split(chr(9))[1]}" for i, line in enumerate(test[1:21])]
    (rows_folder / "test.tsv").write_text("\n".join([train[0], *train[1:41], *unseen]) + "\n")
    raw = {
        "question": "?",
        "task": "classify",
        "seeds": 2,
        "data": {"source": str(rows_folder), "validation_fraction": 0.0, "allow_overlap": True},
        "model": {"width": 16, "layers": 1, "heads": 2, "context": 12},
        "training": {"budget": "20 steps"},
        "variants": {"none": {"model": {"position": "none"}}},
    }
    outcome = run_experiment.run_experiment(
        h2h.experiment_from_dict(raw, "leak"), tmp_path / "runs", backend=in_process_pool
    )
    findings = outcome.findings
    assert findings is not None
    assert findings.rows == "unseen"
    assert findings.verdicts[0].examples == 20
    assert findings.other_verdicts["test, all rows"][0].examples == 60
    assert any(row.passed is False and "40 of 60" in row.observation for row in findings.data_audits)
    assert findings.confusion.labels == ["builder", "other"]
    unseen = [value for _, value in findings.scores["none"]["test, unseen rows"]]
    assert findings.verdicts[0].variant_mean == pytest.approx(sum(unseen) / 2)
