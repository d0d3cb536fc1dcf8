"""Untrusted or edited run folders: results, metrics, findings, checkpoints, journals, caches, names."""

import contextlib
import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tools.fuzz_targets import FUZZ_TARGETS, run_target
from tools.fuzz_targets.runs import RUN_FILES
from tools.fuzz_targets.sample_experiment import (
    build_sample_runs,
    replace_checksummed_file,
    replace_file,
    strip_checksums,
)

from headtohead.atomic_io import truncate_file
from headtohead.errors import HeadToHeadError, RunFolderError
from headtohead.experiment import run_folder
from headtohead.findings import compute
from headtohead.json_files import append_jsonl, read_json, read_jsonl
from headtohead.report import write
from headtohead.runner.verification.verify import verify_experiment

from .odd import other_values, spoiled, tried

KINDS = ("run", "verify", "findings", "checkpoint", "journal", "teacher", "store")


@pytest.mark.parametrize("kind", KINDS)
def test_sound_files_are_read(scratch, kind):
    assert run_target(kind, FUZZ_TARGETS[kind].build_seeds(scratch)[0], scratch) is None


@pytest.mark.parametrize("kind", KINDS)
@tried
@given(data=st.data())
def test_corrupted_files_are_read_or_rejected_with_a_message(scratch, kind, data):
    sound = data.draw(st.sampled_from(FUZZ_TARGETS[kind].build_seeds(scratch)))
    run_target(kind, data.draw(spoiled(sound)), scratch)


@pytest.mark.parametrize("name", [name for name in RUN_FILES if name.endswith(".json")])
@tried
@given(data=st.data())
def test_other_values_in_a_file_of_a_run_are_reckoned_with_or_rejected_with_a_message(scratch, name, data):
    path = build_sample_runs(scratch) / name
    sound = (
        json.loads(strip_checksums(path.read_bytes()))
        if path.is_file()
        else {"message": "diverged", "kind": "DivergedError"}
    )
    content = bytes([RUN_FILES.index(name)]) + data.draw(other_values(sound))
    run_target(data.draw(st.sampled_from(["run", "run", "verify"])), content, scratch)


@tried
@given(data=st.data())
def test_other_values_in_findings_are_shown_or_rejected_with_a_message(scratch, data):
    labels = data.draw(st.booleans())
    sound = json.loads(strip_checksums((build_sample_runs(scratch, labels=labels) / "findings.json").read_bytes()))
    run_target("findings", data.draw(other_values(sound)), scratch)


@tried
@given(data=st.data())
def test_other_values_in_a_journal_are_rejected_with_a_message(scratch, data):
    *_, sound = FUZZ_TARGETS["journal"].build_seeds(scratch)
    lines = [json.loads(line) for line in sound.splitlines()]
    changed = json.loads(data.draw(other_values(lines)))
    rows = changed if isinstance(changed, list) else [changed]
    run_target("journal", b"".join(json.dumps(row).encode() + b"\n" for row in rows), scratch)


# ---- files that are not what they seem


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"a": ' + b"[" * 5_000, "nested too deep"),
        (b"[" * 100 + b"]" * 100, "nested too deep"),
        (b"9" * 5_000, "4300 digits"),
        (b"123456789012345678901234567890", "too large a number"),
        (b"1e999", "1e999 is not a number"),
        (b"[NaN]", "NaN is not a number"),
        (b'"\\ud800"', "surrogates not allowed"),
        (b"\xff", "is corrupted"),
        (b"", "is corrupted"),
    ],
)
def test_json_that_cannot_be_handed_on_is_rejected(tmp_path, content, said):
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(RunFolderError, match=said):
        read_json(tmp_path / "x.json")


def test_a_pipe_or_a_device_in_the_place_of_a_file_is_not_read(tmp_path, scratch):
    folder = tmp_path / "world"
    shutil.copytree(build_sample_runs(scratch), folder)
    run = folder / "baseline" / "seed-0"
    for name in ("start.json", "trial.json", "scores.safetensors", "result.json", "config.json"):
        content = (run / name).read_bytes()
        (run / name).unlink()
        for place in (lambda path: path.symlink_to("/dev/zero"), os.mkfifo, Path.mkdir):
            place(run / name)
            for contents in (
                lambda: compute.compute_findings(run_folder.open_experiment_runs(folder)),
                lambda: verify_experiment(folder),
            ):
                with contextlib.suppress(HeadToHeadError):
                    contents()
            (run / name).rmdir() if (run / name).is_dir() else (run / name).unlink()
        (run / name).write_bytes(content)
    assert compute.compute_findings(run_folder.open_experiment_runs(folder)).verdicts


def test_lines_are_not_added_to_what_a_link_leads_to(tmp_path):
    """A resumed untrusted folder could contain a link to one of the user's files."""
    own_result = tmp_path / "mine"
    own_result.write_text("mine\n")
    link = tmp_path / "metrics.jsonl"
    link.symlink_to(own_result)
    with pytest.raises(RunFolderError, match=r"is a link.*refusing to write"):
        append_jsonl(link, {"step": 1})
    with pytest.raises(RunFolderError, match=r"is a link.*refusing to write"):
        truncate_file(link, 0)
    assert own_result.read_text() == "mine\n"


# ---- names that lead away


def changed(path: Path, change) -> bytes:
    value = json.loads(strip_checksums(path.read_bytes()))
    change(value)
    return json.dumps(value).encode()


def test_a_variant_cannot_lead_out_of_the_folder(scratch):
    def rename(about):
        about["experiment"]["variants"] = {"../../world": {"model": {"position": "alibi"}}}

    folder = build_sample_runs(scratch)
    with replace_file(folder / "experiment.json", changed(folder / "experiment.json", rename)):
        for content in (
            lambda: compute.compute_findings(run_folder.open_experiment_runs(folder)),
            lambda: verify_experiment(folder),
        ):
            with pytest.raises(RunFolderError, match=r"invalid variant name '\.\./\.\./world'"):
                content()


@pytest.mark.parametrize("name", ["../../../../../etc/hostname", "/etc/hostname"])
def test_checksums_of_files_elsewhere_are_not_taken(scratch, name):
    folder = build_sample_runs(scratch)
    path = folder / "baseline" / "seed-0" / "result.json"
    with replace_file(path, changed(path, lambda result: result["sha256"].update({name: "0" * 64}))):
        with pytest.raises(RunFolderError, match="names a file outside the run"):
            run_folder.Run(path.parent).find_damaged_files()
        assert not all(check.passed for check in verify_experiment(folder))


def test_a_checkpoint_reads_its_own_two_files_only(scratch):
    state = json.loads(FUZZ_TARGETS["checkpoint"].build_seeds(scratch)[0][1:])
    state["sha256"]["../../../../etc/hostname"] = "0" * 64
    state.pop("checksum", None)
    assert "it must have checksums of" in str(run_target("checkpoint", b"\x00" + json.dumps(state).encode(), scratch))


def test_folders_that_are_no_seeds_are_no_runs(scratch):
    folder = build_sample_runs(scratch)
    odd = ("seed-x", "seed-", "seed--1", "seed-" + "9" * 60, "seed-01")
    for name in odd:
        (folder / "baseline" / name).mkdir(exist_ok=True)
    try:
        assert not set(run_folder.open_experiment_runs(folder).seeds("baseline")) - {0, 1, 7}
    finally:
        for name in odd:
            (folder / "baseline" / name).rmdir()


# ---- figures that do not agree, and tables that would fill the memory


def test_a_long_list_of_labels_makes_no_table_of_its_square(scratch):
    folder = build_sample_runs(scratch)

    def label(corpus):
        corpus["labels"] = [f"label {at}" for at in range(100_000)]

    with replace_file(folder / "corpus.json", changed(folder / "corpus.json", label)):
        assert compute.compute_findings(run_folder.open_experiment_runs(folder)).confusion is None


def test_figures_that_do_not_agree_are_reported(scratch):
    folder = build_sample_runs(scratch, labels=True)
    path = folder / "corpus.json"
    content = changed(path, lambda corpus: corpus["unseen"].update(test=[10**9]))
    with replace_file(path, content), pytest.raises(RunFolderError, match="its files contradict each other"):
        compute.compute_findings(run_folder.open_experiment_runs(folder))


def test_a_loss_that_ran_away_is_read_and_not_drawn(scratch):
    folder = build_sample_runs(scratch)
    name = "baseline/seed-0/metrics.jsonl"
    path = folder / name
    lines = path.read_bytes() + b'{"step": 3, "split": "test", "loss": NaN, "perplexity": Infinity, "seconds": 1}\n'
    with replace_checksummed_file(folder, name, lines):
        assert read_jsonl(path)[-1]["step"] == 3
        curve = compute.compute_findings(run_folder.open_experiment_runs(folder)).curves["baseline"]["test"]["0"]
        assert curve[-1] == (3, None)
        before = (folder / "findings.json").read_bytes()
        with replace_file(folder / "findings.json", before):
            compute.write_findings(run_folder.open_experiment_runs(folder))
            assert write(folder, ["md"], scratch / "report")
