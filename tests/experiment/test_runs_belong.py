"""Runs belong to their experiment: edited settings, code and data, and manipulated run folders.

Before runs were checked against the experiment and its journal, all of these mixed old and new runs in one verdict, or
changed the verdict, and `verify --rescore` passed.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.conftest import sentence, write_text

from headtohead.atomic_io import compute_sha256
from headtohead.config.trial_settings import build_trial
from headtohead.errors import RunFolderError
from headtohead.experiment import loading
from headtohead.experiment.journal import Journal
from headtohead.experiment.provenance.user_files import find_data_files
from headtohead.experiment.run_folder import Run, open_experiment_runs
from headtohead.experiment.schemas import CorpusEvent, RunEvent
from headtohead.findings import compute
from headtohead.json_files import compute_json_checksum, read_json_object, write_json
from headtohead.runner.run_experiment import run_experiment
from headtohead.runner.verification.isolated_scoring import compare_isolated_losses
from headtohead.runner.verification.verify import verify_experiment
from headtohead.tasks import registry
from headtohead.trials.trial import run_trial

PART = """
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from helper_of_part import SCALE
from headtohead.nn.parts.feedforward import {base}
from headtohead.nn.parts.registry import register_part


@register_part("feedforward", "scaled")
class Scaled({base}):
    def forward(self, hidden_states, context):
        return {scale} * SCALE * super().forward(hidden_states, context)
"""
NETWORK = """
import importlib.util
import json
import os
from pathlib import Path

import torch
from torch import nn


class Bag(nn.Module):
    def __init__(self, vocab_size, context):
        super().__init__()
        self.embedding, self.output = nn.Embedding(vocab_size, 16), nn.Linear(16, vocab_size)
        folder = Path("{folder}")
        self.shift = json.loads((Path("{folder}") / "tables" / "shift.json").read_text())
        self.shift += json.loads((folder / "tables" / ("more_" + "shift.json")).read_text())
        self.shift += float(os.environ.get("BELONG_SHIFT", "0"))
        code = compile((folder / ("layers" + ".txt")).read_text(), "layers", "exec")
        exec(code, values := {{}})
        self.shift += values["SHIFT"]
        with (folder / "network.log").open("a") as file:
            file.write("built\\n")

    def forward(self, idx):
        return {scale} * self.output(self.embedding(idx)) + self.shift
"""


def write_code(
    folder: Path,
    *,
    part: float = 1.0,
    network: float = 1.0,
    helper: float = 0.5,
    shift: float = 0.0,
    computed_name: float = 0.0,
    executed: float = 0.0,
) -> None:
    from headtohead.nn.parts.registry import get_part_class

    base = get_part_class("feedforward", "mlp").__name__
    (folder / "part.py").write_text(PART.format(scale=part, base=base))
    (folder / "network.py").write_text(NETWORK.format(scale=network, folder=folder))
    (folder / "tables").mkdir(exist_ok=True)
    (folder / "tables" / "shift.json").write_text(str(shift))
    (folder / "tables" / "more_shift.json").write_text(str(computed_name))
    (folder / "layers.txt").write_text(f"SHIFT = {executed}\n")
    (folder / "helper_of_part.py").write_text(f"SCALE = {helper}\n")


def build(folder: Path, seeds: int = 2, lr: float = 0.001, **variants: Any) -> Any:
    registry._load_dataset_cached.cache_clear()  # a new process would read data and code again
    sys.modules.pop("helper_of_part", None)
    for name, module in list(sys.modules.items()):
        if name.startswith("headtohead_own") and hasattr(module, "SCALE"):
            module.SCALE = float((folder / "helper_of_part.py").read_text().partition("=")[2])
    raw = {
        "question": "Does it help?",
        "task": "language-model",
        "seeds": seeds,
        "plugins": [str(folder / "part.py")],
        "data": {"source": str(folder / "text"), "rows": "sentences", "allow_overlap": True},
        "model": {"width": 16, "layers": 1, "heads": 2, "context": 12},
        "training": {"budget": "10 steps", "batch_size": 8, "optimizer": {"kind": "adamw", "lr": lr}},
        "variants": {
            "part": {"model": {"feedforward": "scaled"}},
            "network": {"model": {"module": f"{folder / 'network.py'}:Bag", "context": 12}},
            **variants,
        },
    }
    return loading.build_experiment(raw, "belong")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with code, data and a finished experiment."""
    root = tmp_path_factory.mktemp("belong")
    write_text(root / "text")
    write_code(root)
    assert not run_experiment(build(root), root / "runs", num_workers=1).failed_jobs
    return root


@pytest.fixture
def edited(trained: Path) -> Any:
    """Like `trained`, but restore code and data afterwards, because runs refer to their paths."""
    shutil.copytree(trained, backup := trained.with_name("backup"), dirs_exist_ok=True)
    yield trained
    shutil.rmtree(trained)
    shutil.copytree(backup, trained)
    build(trained)


def edit_data(root: Path) -> Any:
    (root / "text" / "train.txt").write_text("\n".join(sentence(random.Random(7)) for _ in range(300)) + "\n")
    return build(root)


def edit_code(**changes: float) -> Callable[[Path], Any]:
    def edit(root: Path) -> Any:
        write_code(root, **changes)
        return build(root)

    return edit


EDITS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "variant": (
        lambda root: build(root, part={"model": {"feedforward": "scaled", "position": "alibi"}}),
        r"part was trained with different settings: model\.position is .* instead of .*alibi.*\(seeds 0, 1\); remove",
    ),
    "part": (edit_code(part=2.0), r"part was trained with different files or versions: part\.py was changed"),
    "network": (
        edit_code(network=2.0),
        r"network was trained with different files or versions: network\.py was changed",
    ),
    "helper": (
        edit_code(helper=2.0),
        r"part was trained with different files or versions: helper_of_part\.py was changed",
    ),
    "data file of the network": (
        edit_code(shift=0.5),
        r"network was trained with different files or versions: file .*/tables/shift\.json was changed",
    ),
    "data file under a computed name": (
        edit_code(computed_name=0.5),
        r"network was trained with different files or versions: .*/tables/more_shift\.json was changed",
    ),
    "executed file": (
        edit_code(executed=0.5),
        r"network was trained with different files or versions: .*/layers\.txt was changed",
    ),
    "data": (edit_data, r"baseline was trained on a different corpus than the experiment"),
    "seeds": (
        lambda root: build(root, seeds=1),
        r"baseline has runs that the experiment does not ask for \(seeds = 1\) \(seed 1\)",
    ),
}


@pytest.mark.parametrize("edit", EDITS)
def test_resume_rejects_runs_of_what_was_edited(edited: Path, edit: str) -> None:
    apply, message = EDITS[edit]
    before = (edited / "runs" / "journal.jsonl").read_bytes()
    with pytest.raises(RunFolderError, match=message):
        run_experiment(apply(edited), edited / "runs", num_workers=1, resume=True)
    assert (edited / "runs" / "journal.jsonl").read_bytes() == before


def test_resume_rejects_runs_with_another_value_in_the_environment(
    edited: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BELONG_SHIFT", "0.5")
    with pytest.raises(RunFolderError, match=r"network was .*: environment variable BELONG_SHIFT was changed"):
        run_experiment(build(edited), edited / "runs", num_workers=1, resume=True)


def test_runs_that_read_different_versions_of_a_file_are_not_judged(edited: Path) -> None:
    shutil.rmtree(edited / "runs" / "network" / "seed-1")
    write_code(edited, computed_name=0.5)
    experiment = build(edited)
    run = edited / "runs" / "network" / "seed-1"
    run_trial(build_trial(experiment, "network", 1), run, device="cpu")
    Journal(edited / "runs").record_finished("network", 1, run)
    findings = compute.compute_findings(open_experiment_runs(edited / "runs"))
    (verdict,) = [verdict for verdict in findings.verdicts if verdict.variant == "network"]
    assert re.search(r"read .*/more_shift\.json in another version than other runs", " ".join(verdict.withheld))


def test_resume_rejects_runs_of_another_version(edited: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headtohead.experiment.provenance.run_identity.metadata.version", lambda name: "9.9")
    with pytest.raises(
        RunFolderError, match="baseline was trained with different files or versions: headtohead was changed"
    ):
        run_experiment(build(edited), edited / "runs", num_workers=1, resume=True)


def test_resume_rejects_runs_of_a_search_with_other_code(edited: Path) -> None:
    run = edited / "runs" / "search" / "point-000" / "seed-0"
    run.mkdir(parents=True)
    shutil.copyfile(edited / "runs" / "baseline" / "seed-0" / "trial.json", run / "trial.json")
    write_code(edited, part=3.0)
    with pytest.raises(
        RunFolderError, match=r"search/point-000 was trained with different files or versions: part\.py"
    ):
        run_experiment(build(edited), edited / "runs", num_workers=1, resume=True)


def test_unchanged_experiment_is_resumed(edited: Path) -> None:
    shutil.rmtree(edited / "runs" / "baseline" / "seed-1")  # the remedy of the messages above
    outcome = run_experiment(build(edited), edited / "runs", num_workers=1, resume=True)
    assert [job.state for job in outcome.jobs].count("finished") == 1
    assert outcome.findings is not None
    assert not any("journal" in reason for verdict in outcome.findings.verdicts for reason in verdict.withheld)


def test_data_files_that_the_code_names_are_listed(edited: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
a = open("words.txt"), Path(__file__).parent / "data" / "table.json", os.path.join(folder, "data", "table.json")
b = f"{name}.txt", "missing.txt", "network.py", "é" * 200
"""
    (edited / "network.py").write_text(code)
    (edited / "data").mkdir()
    for name in ("words.txt", "data/table.json", "words.bin"):
        (edited / name).write_text("1")
    monkeypatch.chdir(edited)
    model = {"module": f"{edited / 'network.py'}:Bag", "context": 12, "options": {"table": "words.bin"}}
    trial = build_trial(build(edited, other={"model": model}), "other", 0)
    assert set(find_data_files(trial)) == {"words.txt", "data/table.json", "words.bin"}


def test_files_that_the_code_reads_are_stated_above_the_verdict(edited: Path) -> None:
    findings = compute.compute_findings(open_experiment_runs(edited / "runs"))
    warnings = {row.variant: row.message for row in findings.warnings if row.kind == "reads files"}
    names = [edited / "layers.txt", edited / "tables" / "more_shift.json", edited / "tables" / "shift.json"]
    assert warnings == {"network": f"the code of network reads {', '.join(map(str, names))}."}


def seal(path: Path, **changes: Any) -> None:
    """Change a JSON file and update its checksum."""
    write_json(path, {**read_json_object(path), **changes}, with_checksum=True)


def replace_listed_file(run: Path, name: str, content: bytes | None) -> None:
    """Replace or remove a file of a run together with its checksum."""
    checksums = read_json_object(run / "result.json")["sha256"]
    checksums.pop(name)
    if content is None:
        (run / name).unlink()
    else:
        (run / name).write_bytes(content)
        checksums[name] = compute_sha256(run / name)
    result = read_json_object(run / "result.json")
    result.pop("checksum")
    write_json(run / "result.json", {**result, "sha256": checksums}, with_checksum=True)


def remove_audits(runs: Path) -> None:
    replace_listed_file(runs / "part" / "seed-0", "audits.json", None)


def move_losses(runs: Path) -> None:
    run = runs / "part" / "seed-0"
    arrays = load_file(run / "scores.safetensors")
    order = np.argsort(arrays["test.losses"])
    arrays["test.losses"] = arrays["test.losses"][order]
    save_file(arrays, run / "moved.safetensors")
    content = (run / "moved.safetensors").read_bytes()
    (run / "moved.safetensors").unlink()
    replace_listed_file(run, "scores.safetensors", content)


def take_weaker_baseline(runs: Path) -> None:
    root = runs.parent
    weaker = build(root, lr=1e-9).model_copy(update={"variants": {}})
    own_trial = read_json_object(runs / "baseline" / "seed-0" / "trial.json")["trial"]
    run_experiment(weaker, root / "weaker", num_workers=1)
    for seed in range(2):
        shutil.rmtree(runs / "baseline" / f"seed-{seed}")
        shutil.copytree(root / "weaker" / "baseline" / f"seed-{seed}", runs / "baseline" / f"seed-{seed}")
    # As careful as a cheater would be: the settings are those of the experiment.
    for seed in range(2):
        path = runs / "baseline" / f"seed-{seed}" / "trial.json"
        record = read_json_object(path)
        record["trial"]["training"] = own_trial["training"]
        record.pop("checksum")
        content = json.dumps({**record, "checksum": compute_json_checksum(record)}, indent=1).encode()
        replace_listed_file(path.parent, "trial.json", content)


def pick_unseen_rows(runs: Path) -> None:
    corpus = read_json_object(runs / "corpus.json")
    corpus.pop("checksum")
    corpus["unseen"] = {name: rows[:10] for name, rows in corpus["unseen"].items()}
    write_json(runs / "corpus.json", corpus, with_checksum=True)


def copy_run(runs: Path, variant: str, source: int, copy: int) -> None:
    folder = runs / variant / f"seed-{copy}"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(runs / variant / f"seed-{source}", folder)
    record = read_json_object(folder / "trial.json")
    record["trial"]["seed"] = copy
    record.pop("checksum")
    content = json.dumps({**record, "checksum": compute_json_checksum(record)}, indent=1).encode()
    replace_listed_file(folder, "trial.json", content)
    result = read_json_object(folder / "result.json")
    result.pop("checksum")
    write_json(folder / "result.json", {**result, "seed": copy}, with_checksum=True)


def copy_as_new_seed(runs: Path) -> None:
    for variant in ("baseline", "part", "network"):
        copy_run(runs, variant, 0, 1)


def delete_seeds(runs: Path) -> None:
    for variant in ("baseline", "part", "network"):
        shutil.rmtree(runs / variant / "seed-1")


TAMPERING: dict[str, tuple[Callable[[Path], None], str]] = {
    "audits removed": (remove_audits, r"part has a run whose result is not the one that journal\.jsonl records"),
    "losses moved between rows": (move_losses, r"part has a run whose result is not the one"),
    "weaker baseline": (take_weaker_baseline, r"the baseline has a run whose result is not the one .*\(seeds 0, 1\)"),
    "unseen rows picked": (pick_unseen_rows, r"part is judged with a corpus\.json that is not the one"),
    "run copied as a new seed": (copy_as_new_seed, r"has the same trained weights as with seed 0, byte for byte"),
    "seeds deleted": (delete_seeds, r"part lacks a run that journal\.jsonl records as finished \(seed 1\)"),
}


@pytest.mark.parametrize("tampering", TAMPERING)
def test_tampering_withholds_the_verdict_and_is_reported(edited: Path, tampering: str) -> None:
    apply, reason = TAMPERING[tampering]
    runs = edited / "runs"
    apply(runs)
    findings = compute.write_findings(open_experiment_runs(runs))
    verdict = next(verdict for verdict in findings.verdicts if verdict.variant == "part")
    assert verdict.outcome == "not comparable", verdict.summary
    assert re.search(reason, "\n".join(f"part {text}\n{text}" for text in verdict.withheld)), verdict.withheld
    failed = [check for check in verify_experiment(runs) if not check.passed]
    assert any(
        re.search(reason.removeprefix("the baseline ").removeprefix("part "), check.observation) for check in failed
    )


def forge_journal(runs: Path) -> None:
    """Write a journal with valid checksums for the current files."""
    journal = Journal(runs)
    events = journal.read()
    journal.path.unlink()
    for event in events:
        if isinstance(event, RunEvent) and not (runs / event.variant / f"seed-{event.seed}").is_dir():
            continue
        if isinstance(event, RunEvent) and event.digest:
            result = runs / event.variant / f"seed-{event.seed}" / "result.json"
            event = event.model_copy(update={"digest": compute_sha256(result)})
        if isinstance(event, CorpusEvent):
            event = CorpusEvent(digest=compute_sha256(runs / "corpus.json"))
        Journal(runs).append(event)
    compute.write_findings(open_experiment_runs(runs))


def hide_an_audit(runs: Path) -> None:
    run = runs / "part" / "seed-0"
    audits = read_json_object(run / "audits.json")["audits"]
    remaining = [audit for audit in audits if audit["name"] != "determinism"]
    assert len(remaining) < len(audits)
    replace_listed_file(run, "audits.json", json.dumps({"schema_version": 2, "audits": remaining}).encode())


FORGED: dict[str, tuple[Callable[[Path], None], str]] = {
    "audit hidden": (hide_an_audit, r"audits\.json does not contain determinism"),
    "losses moved between rows": (move_losses, r"test: \d+ of \d+ losses differ; example \d+ has .* with the saved"),
    "unseen rows picked": (pick_unseen_rows, r"unseen is not what the corpus gives"),
    "run copied as a new seed": (copy_as_new_seed, r"the batches are not those of seed 1"),
    "seeds deleted": (delete_seeds, r"seeds without a result: 1; train them with --resume"),
}


@pytest.mark.parametrize("tampering", FORGED)
def test_verify_recomputes_what_a_forged_journal_hides(edited: Path, tampering: str) -> None:
    apply, observation = FORGED[tampering]
    runs = edited / "runs"
    apply(runs)
    forge_journal(runs)
    failed = [check.observation for check in verify_experiment(runs, rescore=True) if not check.passed]
    assert any(re.search(observation, text) for text in failed), failed


def test_retrained_runs_are_drawn_by_the_operating_system(edited: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(*arguments: Any) -> None:
        raise ZeroDivisionError("drawn by the operating system")

    monkeypatch.setattr("random.SystemRandom.sample", draw)
    with pytest.raises(ZeroDivisionError, match="drawn by the operating system"):
        verify_experiment(edited / "runs", num_retrained=1)


LEAK = """
class Leak(Bag):
    def forward(self, idx):
        logits = super().forward(idx)
        following = torch.nn.functional.one_hot(idx.roll(-1, 1), logits.shape[-1])
        following[:, -1] = 0
        return logits + 3.0 * following
"""


def test_isolated_process_cannot_read_the_future(edited: Path, tmp_path: Path) -> None:
    honest = open_experiment_runs(edited / "runs").run("network", 0)
    assert compare_isolated_losses(honest) == ""
    (edited / "leak.py").write_text(NETWORK.format(scale=1.0, folder=edited) + LEAK)
    experiment = build(edited, leak={"model": {"module": f"{edited / 'leak.py'}:Leak", "context": 12}})
    run_trial(build_trial(experiment, "leak", 0), tmp_path / "run", device="cpu")
    mismatch = compare_isolated_losses(Run(tmp_path / "run"))
    assert re.match(r"test, example \d+: loss is .* in the file and .* if each token is predicted before", mismatch)
