"""Every kind of invalid input has a specific error message and exit code 2, and leaves no partial output."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headtohead.cli import main

EXPERIMENT = """
question = "Does it help?"
task = "{task}"
seeds = 1
[data]
source = "{source}"
[model]
width = 16
layers = 1
heads = 2
context = 8
[training]
budget = "4 steps"
eval_every = 2
[variants.alibi]
model.position = "alibi"
"""


@pytest.fixture
def h2h(monkeypatch, capsys, tmp_path):
    """Call the command line in this process; return (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["h2h", *map(str, arguments)])
        with pytest.raises(SystemExit, match=r"^\d+$") as ended:
            main()
        caught = capsys.readouterr()
        return int(ended.value.code or 0), caught.out, caught.err

    return call


@pytest.fixture
def write_experiment(tmp_path):
    """Return a function that writes a valid experiment file and its text."""

    def make(task: str = "language-model", source: str = "text") -> Path:
        text = tmp_path / "text"
        text.mkdir(exist_ok=True)
        for name in ("train", "validation", "test"):
            (text / f"{name}.txt").write_text("\n".join(f"word{i % 7} is {name} line {i} ." for i in range(40)))
        rows = tmp_path / "rows"
        rows.mkdir(exist_ok=True)
        for name in ("train", "test"):
            lines = [f"{'ab'[i % 2]}\tword{i} is {name} line" for i in range(40)]
            (rows / f"{name}.tsv").write_text("label\ttext\n" + "\n".join(lines) + "\n")
        file = tmp_path / "mine.toml"
        file.write_text(EXPERIMENT.format(task=task, source=source))
        return file

    return make


def refused(answer: tuple[int, str, str], *words: str) -> None:
    code, out, err = answer
    assert code == 2, err
    assert out == ""
    for word in words:
        assert word in err
    assert "Traceback" not in err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("model.widht=3", ("model.widht", "unknown key", "did you mean 'width'?")),
        ('model.width="64"', ("model.width", "must be a whole number", "'64'")),
        ("model.heads=3", ("width (16) must be divisible by heads (3)",)),
        ("model.position=alibbi", ("unknown position 'alibbi'", "did you mean 'alibi'?", "allowed:")),
        ("training.optimizer={ kind = 'sgd', rate = 1 }", ("sgd has no option 'rate'", "did you mean 'lr'?")),
        ("training.optimizer=adamm", ("unknown optimizer 'adamm'", "did you mean 'adam'?")),
        ("data.tokenizer=wurds", ("wurds", "did you mean 'words'?")),
        ("data.monitor=['nobody']", ("no held-out text named 'nobody'",)),
        ("training.budget=5 eons", ("allowed: steps, epochs",)),
        ("seeds=many", ('5, "auto"',)),
    ],
)
def test_a_wrong_setting(h2h, write_experiment, setting, words):
    refused(h2h("run", write_experiment(), "--set", setting), *words)


def test_a_recipe_or_file_that_does_not_exist(h2h):
    refused(h2h("run", "speeches-decodr"), "did you mean 'speeches-decoder'?")
    refused(h2h("run", "none.toml"), "no such file")


def test_a_report_format_that_cannot_be_written_is_refused_before_the_training(h2h, write_experiment, monkeypatch):
    refused(h2h("run", write_experiment(), "--format", "docx"), "'docx' given", "allowed: html, md, pdf")
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "typst" else find_spec(name))
    refused(h2h("run", write_experiment(), "--format", "pdf"), "needs typst", "pip install 'headtohead[pdf]'")


def test_text_without_quotes(h2h, write_experiment):
    file = write_experiment()
    file.write_text("question = Why\n", encoding="utf-8")
    refused(h2h("run", file), "Invalid value", "line 1", "text needs quotes")


def test_an_empty_file(h2h, write_experiment):
    (Path("empty.toml")).write_text("")
    refused(h2h("run", "empty.toml"), "empty.toml", "is empty")
    file = write_experiment()
    (Path("text") / "train.txt").write_text("")
    refused(h2h("run", file), "train.txt", "empty")


def test_a_tsv_with_a_missing_column(h2h, write_experiment):
    file = write_experiment("classify", "rows")
    path = Path("rows/train.tsv")
    path.write_text(path.read_text().replace("a\tword2 is", "word2 is", 1))
    refused(h2h("run", file), "train.tsv", "line 4")


def test_a_tsv_with_an_unknown_label(h2h, write_experiment):
    file = write_experiment("classify", "rows")
    path = Path("rows/test.tsv")
    path.write_text(path.read_text().replace("a\tword2 is", "c\tword2 is", 1))
    refused(h2h("run", file), "test.tsv", "line 4", "'c'", "does not occur in train")


def test_bytes_that_are_not_utf8(h2h, write_experiment):
    file = write_experiment()
    (Path("text") / "train.txt").write_bytes(b"a fine word\nand \xff a bad one\n")
    refused(h2h("run", file), "train.txt", "UTF-8")


def test_a_folder_without_the_expected_files(h2h, write_experiment):
    file = write_experiment()
    (Path("other")).mkdir()
    (Path("other") / "notes.md").write_text("nothing here")
    refused(h2h("run", file, "--data", "other"), "other", "notes.md", "train.txt")
    refused(h2h("run", file, "--data", "nowhere"), "nowhere")


def test_a_text_shorter_than_one_context(h2h, write_experiment):
    file = write_experiment()
    (Path("text") / "train.txt").write_text("just five words in here")
    refused(h2h("run", file), "train", "a block of context 8 requires 9")


def test_a_run_folder_made_by_a_different_experiment(h2h, write_experiment):
    file = write_experiment()
    code, _, _ = h2h("run", file, "--out", "mine", "--workers", "1")
    assert code == 0
    before = sorted((p, p.stat().st_mtime_ns) for p in Path("mine").rglob("*"))
    answer = h2h("run", file, "--out", "mine", "--set", "model.width=32", "--resume")
    refused(answer, "different experiment", "model.width is 16 instead of 32")
    refused(h2h("run", file, "--out", "mine"), "--resume continues it")
    Path("full").mkdir()
    (Path("full") / "letter.txt").write_text("mine")
    refused(h2h("run", file, "--out", "full"), "is not empty")
    assert before == sorted((p, p.stat().st_mtime_ns) for p in Path("mine").rglob("*"))


@pytest.fixture
def small_disk(tmp_path):
    """Simulate a disk with a limited number of kilobytes."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = shutil.which("mount") and os.geteuid() == 0
    if (
        not mounted
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", place], check=False).returncode
    ):
        pytest.skip("a small disk can only be mounted by root")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_full_disk_is_reported_before_anything_starts(h2h, write_experiment, small_disk):
    filler = small_disk / "filler"
    filler.write_bytes(bytes(390 * 1024))
    refused(h2h("run", write_experiment(), "--out", small_disk / "runs"), "the disk has", "MB left")
    assert list(small_disk.iterdir()) == [filler]


def test_a_disk_that_fills_up_on_the_way_leaves_whole_files_and_can_be_resumed(h2h, write_experiment, small_disk):
    from headtohead.config import trial_settings
    from headtohead.errors import DiskFullError
    from headtohead.experiment import loading
    from headtohead.trials.trial import run_trial

    trial = trial_settings.build_trial(loading.load_experiment(write_experiment()), "baseline", 0)
    filler = small_disk / "filler"
    filler.write_bytes(bytes(380 * 1024))
    with pytest.raises(DiskFullError, match="no disk space left to write"):
        run_trial(trial, small_disk / "run")
    assert not [p for p in (small_disk / "run").rglob("*") if ".part" in p.name]
    filler.unlink()
    run_trial(trial, small_disk / "run")
    run_trial(trial, Path("undisturbed"))
    assert (small_disk / "run" / "model.safetensors").read_bytes() == Path("undisturbed/model.safetensors").read_bytes()


def test_a_model_that_is_none(h2h, tmp_path):
    refused(h2h("predict", tmp_path, "text"), "not a model folder")
    refused(h2h("score", tmp_path / "none", "text"), "no such folder, file or installed package")
