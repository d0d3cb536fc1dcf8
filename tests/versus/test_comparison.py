"""Comparisons of commands end to end, through the command line."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from headtohead.cli import app
from headtohead.errors import HeadToHeadError
from headtohead.versus.comparison_folder import open_comparison_folder
from headtohead.versus.config import build_command_settings


def run_versus(*arguments: str) -> dict[str, Any]:
    """Run `h2h versus ... --json` and return its output."""
    result = CliRunner().invoke(app, ["versus", *arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    findings: dict[str, Any] = json.loads(result.stdout)
    return findings


def fail_versus(*arguments: str) -> str:
    """Run `h2h versus` with invalid arguments; return the error message."""
    result = CliRunner().invoke(app, ["versus", *arguments])
    assert isinstance(result.exception, HeadToHeadError), result.output
    assert result.exception.exit_code == 2
    return str(result.exception)


def test_a_gain_is_judged_and_reported(script: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    findings = run_versus(
        f"{script} --seed {{seed}}", f"{script} --seed {{seed}} --gain 0.2", "--metric", "val_loss", "--out", str(out)
    )
    (verdict,) = findings["verdicts"]
    assert verdict["outcome"] == "helped"
    assert verdict["seeds"] == 5
    assert verdict["effect"] == pytest.approx(-0.2, abs=0.02)
    page = (out / "report.html").read_text()
    assert "<h1>Does it help to run with --gain 0.2?</h1>" in page
    assert "val_loss" in page
    assert [point[0] for point in findings["curves"]["baseline"]["val_loss"]["0"]] == [0, 20, 40]


@pytest.mark.parametrize(
    ("arguments", "question"),
    [
        (["--gain 0", "--gain 0.2"], "Does it help to run with --gain 0.2?"),
        (["--gain 0.2", ""], "Does it help to run without --gain 0.2?"),
        (
            ["", "--gain 0.2", "--sleep 0"],
            "Do these changes help: variant-1 (with --gain 0.2), variant-2 (with --sleep 0)?",
        ),
        (["", f"--json {'x' * 100}"], ""),
        (["", "'"], ""),
    ],
)
def test_the_question_names_the_arguments_that_differ(arguments: list[str], question: str) -> None:
    commands = [f"python train.py {{seed}} {text}" for text in arguments]
    assert build_command_settings(commands, None, {}, noise=False)["question"] == question


def test_runs_are_interleaved_and_journaled(script: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = f"{script} --seed {{seed}}"
    run_versus(command, f"{command} --gain 0.1", "--metric", "val_loss", "--out", str(out), "--seeds", "3")
    events = [json.loads(line) for line in (out / "journal.jsonl").read_text().splitlines()]
    assert [(event["variant"], event["seed"]) for event in events if event["event"] == "run"] == [
        ("baseline", 0),
        ("variant", 0),
        ("variant", 1),  # the order alternates, so that a drift affects both
        ("baseline", 1),
        ("baseline", 2),
        ("variant", 2),
        ("baseline", 0),  # repeated, to see whether equal seeds give equal values
    ]


def test_seeds_are_added_with_resume_and_nothing_runs_twice(script: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = [f"{script} --seed {{seed}}", f"{script} --seed {{seed}} --gain 0.1", "--metric", "val_loss"]
    run_versus(*arguments, "--out", str(out), "--seeds", "3")
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/seed-*/run.json")}
    assert len(before) == 7
    findings = run_versus(*arguments, "--out", str(out), "--seeds", "4", "--resume")
    assert findings["verdicts"][0]["seeds"] == 4
    assert findings["interim_analyses"] == [3, 4]
    later = 0.85 * 0.05 * (2 / 3 - 2 / 4)
    assert findings["verdicts"][0]["adjusted_confidence"] == pytest.approx(1 - later)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert "exists; continue it with --resume" in fail_versus(*arguments, "--out", str(out))
    changed = [arguments[0], f"{arguments[1]} --sleep 0", *arguments[2:]]
    assert "holds a different comparison" in fail_versus(*changed, "--out", str(out), "--resume")


def test_a_script_that_ignores_its_seed_gets_no_verdict(tmp_path: Path) -> None:
    path = tmp_path / "constant.py"
    path.write_text("print('val_loss=1.5')\nprint('val_loss=1.25')\n")
    command = f"{sys.executable} {path} {{seed}}"
    result = CliRunner().invoke(
        app, ["versus", command, f"{command} x", "--metric", "val_loss", "--out", str(tmp_path / "out"), "--json"]
    )
    assert result.exit_code == 1
    (verdict,) = json.loads(result.stdout)["verdicts"]
    assert verdict["outcome"] == "not comparable"
    assert "every seed gives exactly the same values" in verdict["withheld"][0]


def test_runs_with_equal_curves_are_not_run_to_the_end(script: str, tmp_path: Path) -> None:
    command, out = f"{script} --fail 9{{seed}}", tmp_path / "out"  # the seed stays 0
    result = CliRunner().invoke(
        app, ["versus", command, f"{command} --gain 0.1", "--metric", "val_loss", "--out", str(out)]
    )
    assert result.exit_code == 1
    assert len(list(out.glob("*/*/run.json"))) <= 4
    assert "seed all random generators of the script with {seed}" in " ".join(result.stdout.split())


def list_observations(findings: dict[str, Any]) -> dict[str, str]:
    """Return the answer of each observation by question."""
    return {item["question"]: item["answer"] for item in findings["versus"]["observations"]}


def list_warnings(findings: dict[str, Any]) -> dict[str, str]:
    """Return the message of each warning by its kind."""
    return {warning["kind"]: warning["message"] for warning in findings["warnings"]}


def test_equal_seeds_are_compared_from_outside(script: str, tmp_path: Path) -> None:
    command = f"{script} --seed {{seed}}"
    arguments = [command, f"{command} --gain 0.1", "--metric", "val_loss", "--seeds", "3"]
    observations = list_observations(run_versus(*arguments, "--out", str(tmp_path / "a")))
    repeats = "Is baseline deterministic given the seed?"
    assert observations[repeats] == "yes: all 3 values of seed 0 are bit-identical"
    observations = list_observations(run_versus(*arguments, "--no-check-determinism", "--out", str(tmp_path / "b")))
    assert observations[repeats] == "unknown: no run was repeated"
    assert not list((tmp_path / "b").glob("baseline/*-repeat"))
    findings = run_versus(command, command, *arguments[2:], "--out", str(tmp_path / "c"))
    message = "All values of variant are equal to those of the baseline for every seed."
    assert list_warnings(findings) == {"changed nothing": message}
    question = "Do baseline and variant report the same first value with the same seed?"
    assert list_observations(findings)[question] == "3 of 3 seeds"


def test_a_baseline_that_does_not_repeat_its_values_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "random_loss.py"
    path.write_text("import random, sys\nprint('val_loss=', random.random())\n")
    command = f"{sys.executable} {path} {{seed}}"
    findings = run_versus(
        command, f"{command} x", "--metric", "val_loss", "--seeds", "3", "--out", str(tmp_path / "out")
    )
    first = findings["primary_scores"]["baseline"][0][1]
    assert list_warnings(findings)["not repeatable"].startswith(f"Seed 0 gives {first:.6g} and, run a second time, ")


def test_a_repeated_run_without_a_value_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "once.py"
    path.write_text(
        "import pathlib, sys\n"
        "marker = pathlib.Path(sys.argv[2] + '-' + sys.argv[1])\n"
        "sys.exit('no second run') if marker.exists() else marker.touch()\n"
        "print('val_loss=', int(sys.argv[1]) + 1)\n"
    )
    arguments = [f"{sys.executable} {path} {{seed}} {tmp_path / name}" for name in ("first", "second")]
    findings = run_versus(*arguments, "--metric", "val_loss", "--seeds", "3", "--out", str(tmp_path / "out"))
    assert list_warnings(findings)["not repeatable"] == "Seed 0 gives 1 and, run a second time, no value (failed)."


def test_commands_inherit_the_environment_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "threads.py"
    path.write_text("import os, sys\nprint('acc=', float(os.environ.get('OMP_NUM_THREADS', 7)) + int(sys.argv[1]))\n")
    command = f"{sys.executable} {path} {{seed}}"
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    result = subprocess.run(
        [sys.executable, "-m", "headtohead.cli", "versus", command, f"{command} x", "--metric", "acc", "--json"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert json.loads(result.stdout)["primary_scores"]["baseline"][:2] == [[0, 7.0], [1, 8.0]]


def test_failed_runs_show_their_last_lines_and_are_not_judged(script: str, tmp_path: Path) -> None:
    command = f"{script} --seed {{seed}}"
    findings = run_versus(
        command, f"{command} --gain 0.1 --fail 1", "--metric", "val_loss", "--out", str(tmp_path / "out")
    )
    (failure,) = findings["failures"]
    assert (failure["variant"], failure["seed"]) == ("variant", 1)
    assert "exit code 1; the last lines of its output:\nthe data is missing" in failure["message"]
    assert findings["verdicts"][0]["seeds"] == 4


def test_a_metric_that_is_not_finite_is_an_outcome(script: str, tmp_path: Path) -> None:
    command = f"{script} --seed {{seed}}"
    findings = run_versus(command, f"{command} --nan 2", "--metric", "val_loss", "--out", str(tmp_path / "out"))
    (failure,) = findings["failures"]
    assert failure == {"variant": "variant", "seed": 2, "message": "not finite: val_loss is nan", "is_lost": True}
    assert findings["verdicts"][0]["outcome"] in ("cannot tell", "hurt")


def test_a_metric_that_never_appears_is_an_error_with_the_output(script: str, tmp_path: Path) -> None:
    command = f"{script} --seed {{seed}}"
    result = CliRunner().invoke(
        app,
        ["versus", command, f"{command} --gain 1", "--metric", "bleu", "--out", str(tmp_path / "o"), "--seeds", "2"],
    )
    assert result.exit_code == 1
    text = " ".join(result.stdout.split())
    assert "the metric 'bleu' does not appear in the output" in text
    assert "step 40: train loss" in text


def test_a_run_past_its_time_limit_is_ended(script: str, tmp_path: Path) -> None:
    command = f"{script} --seed {{seed}} --sleep 60"
    began = time.monotonic()
    CliRunner().invoke(
        app,
        [
            "versus",
            command,
            f"{command} --gain 1",
            "--metric",
            "val_loss",
            "--seeds",
            "1",
            "--timeout",
            "0.5",
            "--out",
            str(tmp_path / "o"),
        ],
    )
    assert time.monotonic() - began < 40
    runs = open_comparison_folder(tmp_path / "o").read_runs()
    assert {run.status for by_seed in runs.values() for run in by_seed.values()} == {"timeout"}


def test_a_file_of_the_run_is_read_and_the_shell_is_used_only_on_request(script: str, tmp_path: Path) -> None:
    command = f"{script} --seed {{seed}} --quiet --json {{out}}/result.json"
    findings = run_versus(
        *(command, f"{command} --gain 0.2", "--metric", "final.val_loss", "--metric-file", "{out}/result.json"),
        *("--out", str(tmp_path / "a")),
    )
    assert findings["verdicts"][0]["outcome"] == "helped"
    piped = [f"echo score={{seed}} $H2H_SEED | sed s/score/{name}/" for name in ("x_score", "x_score")]
    findings = run_versus(*piped, "--metric", "x_score", "--shell", "--out", str(tmp_path / "b"), "--seeds", "3")
    assert findings["primary_scores"]["baseline"] == [[0, 0.0], [1, 1.0], [2, 2.0]]


def test_noise_uses_disjoint_seeds_and_states_detectable_effects(script: str, tmp_path: Path) -> None:
    findings = run_versus(
        "--noise", f"{script} --seed {{seed}}", "--metric", "val_loss", "--out", str(tmp_path / "out"), "--seeds", "6"
    )
    seeds = {name: [seed for seed, _ in pairs] for name, pairs in findings["primary_scores"].items()}
    assert seeds == {"baseline": list(range(0, 12, 2)), "repeated": list(range(1, 12, 2))}
    noise = findings["versus"]["noise"]
    assert noise["standard_deviation"] == pytest.approx(0.03, rel=0.6)
    effects = [noise["detectable_effects"][seeds] for seeds in ("3", "5", "8", "12", "20")]
    assert effects == sorted(effects, reverse=True)


def test_bad_requests_are_rejected_before_anything_runs(script: str, tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "out")]
    assert "no {seed}" in fail_versus(script, f"{script} --gain 1", "--metric", "val_loss", *out)
    command = f"{script} --seed {{seed}}"
    assert "--metric is needed" in fail_versus(command, command, *out)
    assert "minimize if lower values of 'speed' are better" in fail_versus(command, command, "--metric", "speed", *out)
    assert "baseline and at least one variant" in fail_versus(command, "--metric", "val_loss", *out)
    assert "--fail-if 'help'; allowed: hurt, cannot-tell" in fail_versus(
        command, command, "--metric", "val_loss", "--fail-if", "help", *out
    )
    assert "No such file" in fail_versus(
        "no-such-program {seed}", "no-such-program {seed} x", "--metric", "val_loss", *out
    )
    toml = tmp_path / "bad.toml"
    toml.write_text('metric = "val_loss"\nseedz = 3\n[baseline]\ncommand = "x"\n[variants.a]\ncommand = "y {seed}"\n')
    message = fail_versus(str(toml), *out)
    assert "seedz" in message
    assert "baseline: the command has no {seed}" in message or "Extra inputs" in message


def test_exit_codes_for_continuous_integration(script: str, tmp_path: Path) -> None:
    command = f"{script} --seed {{seed}}"
    arguments = ["versus", command, f"{command} --gain -0.3", "--metric", "val_loss", "--out", str(tmp_path / "a")]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert CliRunner().invoke(app, [*arguments, "--resume", "--fail-if", "hurt"]).exit_code == 3
    assert CliRunner().invoke(app, [*arguments, "--resume", "--fail-if", "cannot-tell"]).exit_code == 0
    arguments = ["versus", command, f"{command} --gain 0.0001", *arguments[3:5], "--out", str(tmp_path / "b")]
    result = CliRunner().invoke(app, [*arguments, "--fail-if", "hurt,cannot-tell"])
    assert result.exit_code == 4 and "\n  add seeds: h2h " in result.stdout and "--resume\n" in result.stdout
    assert CliRunner().invoke(app, [*arguments, "--resume", "--fail-if", "hurt"]).exit_code == 0
    program = [sys.executable, "-m", "headtohead.cli"]
    assert subprocess.run([*program, *arguments], capture_output=True, check=False).returncode == 2  # without --resume


def test_a_comparison_file_names_variants_and_environment(tmp_path: Path) -> None:
    script = tmp_path / "env.py"
    script.write_text("import os, random\nr = random.Random(int(os.environ['SEED']))\nprint('acc=', r.random())\n")
    (tmp_path / "c.toml").write_text(
        f'''question = "Does it matter?"
metric = {{ name = "acc" }}
seeds = 3
[baseline]
command = "{sys.executable} {script}"
env.SEED = "{{seed}}"
[variants.same]
command = ["{sys.executable}", "{script}"]
env = {{ SEED = "{{seed}}" }}
'''
    )
    findings = run_versus(str(tmp_path / "c.toml"), "--out", str(tmp_path / "out"))
    assert findings["versus"]["question"] == "Does it matter?"
    assert findings["primary_scores"]["baseline"] == findings["primary_scores"]["same"]


def test_a_seed_is_passed_in_an_environment_variable(tmp_path: Path) -> None:
    path = tmp_path / "env.py"
    path.write_text("import os, random\nprint('acc=', random.Random(os.environ['SEED']).random())\n")
    arguments = [f"{sys.executable} {path}", f"{sys.executable} {path} x"]
    options = ["--metric", "acc", "--seeds", "3", "--out", str(tmp_path / "out")]
    findings = run_versus(*arguments, *options, "--env", "SEED={seed}")
    assert findings["primary_scores"]["baseline"] == findings["primary_scores"]["variant"]
    assert "--env 'SEED' is not NAME=VALUE" in fail_versus(*arguments, *options, "--env", "SEED")
    (tmp_path / "c.toml").write_text("")
    assert "a comparison file has keys for them" in fail_versus(str(tmp_path / "c.toml"), "--env", "SEED={seed}")


def test_scripts_that_draw_their_own_seed_are_compared_without_pairing(tmp_path: Path) -> None:
    path = tmp_path / "unseeded.py"
    path.write_text("import random, sys\nprint('val_loss=', random.random() + 9 * (len(sys.argv) < 2))\n")
    arguments = [f"{sys.executable} {path}", f"{sys.executable} {path} x"]
    options = ["--metric", "val_loss", "--out", str(tmp_path / "out")]
    assert "If the script sets no seed, so that every run is different: --unseeded" in fail_versus(*arguments, *options)
    findings = run_versus(*arguments, *options, "--unseeded")
    (verdict,) = findings["verdicts"]
    assert (verdict["outcome"], verdict["is_paired"]) == ("helped", False)
    assert [seed for seed, _ in findings["primary_scores"]["variant"]] == [1, 3, 5, 7, 9]
    assert not list((tmp_path / "out").glob("baseline/*-repeat"))
    findings = run_versus(*arguments, *options, "--unseeded", "--seeds", "6", "--resume")
    assert [seed for seed, _ in findings["primary_scores"]["baseline"]] == [0, 2, 4, 6, 8, 10]


def test_a_command_that_always_fails_is_not_run_to_the_end(script: str, tmp_path: Path) -> None:
    command, out = f"{script} --seed {{seed}}", tmp_path / "out"
    arguments = [command, f"{command} --unknown"]
    result = CliRunner().invoke(app, ["versus", *arguments, "--metric", "val_loss", "--out", str(out)])
    assert result.exit_code == 1
    assert len(list(out.glob("variant/*/run.json"))) == 2
    assert len(list(out.glob("baseline/*/run.json"))) == 6
    assert "unrecognized arguments: --unknown" in result.stdout


def test_a_folder_without_any_value_is_used_again(script: str, tmp_path: Path) -> None:
    command, out = f"{script} --seed {{seed}}", tmp_path / "out"
    arguments = [command, f"{command} --gain 0.1", "--seeds", "3", "--out", str(out)]
    result = CliRunner().invoke(app, ["versus", *arguments, "--metric", "valid_loss"])
    assert result.exit_code == 1
    assert len(list(out.glob("*/*/run.json"))) == 1
    message = (
        "the metric 'valid_loss' does not appear in the output, which has step, train loss, val loss; did you mean"
    )
    assert message in " ".join(result.stdout.split())
    findings = run_versus(*arguments, "--metric", "val_loss")
    assert findings["verdicts"][0]["seeds"] == 3


def test_failures_of_an_earlier_command_are_not_reported(script: str, tmp_path: Path) -> None:
    out = ["--seeds", "3", "--out", str(tmp_path / "out"), "--metric", "val_loss"]
    failing = f"{script} --seed {{seed}} --unknown"
    CliRunner().invoke(app, ["versus", failing, failing, *out])
    arguments = [f"{script} --seed {{seed}}", f"{script} --seed {{seed}} --gain 0.1"]
    result = CliRunner().invoke(app, ["versus", *arguments, *out[:-1], "bleu"])
    assert "the metric 'bleu' does not appear" in " ".join(result.stdout.split())
    assert "--unknown" not in result.stdout
    findings = run_versus(*arguments, *out)
    assert findings["failures"] == []
    assert findings["verdicts"][0]["seeds"] == 3


def test_long_lines_of_failed_runs_are_shortened(tmp_path: Path) -> None:
    path = tmp_path / "verbose.py"
    path.write_text("import sys\nprint('x' * 5000)\nsys.exit('the data is missing')\n")
    command = f"{sys.executable} {path} {{seed}}"
    result = CliRunner().invoke(app, ["versus", "--noise", command, "--metric", "acc", "--out", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert 300 <= result.stdout.count("x") < 1000
    assert "the data is missing" in result.stdout
    assert "Detectable changes" not in result.stdout


def test_a_script_that_changed_is_not_continued(script: str, tmp_path: Path) -> None:
    command, out = f"{script} --seed {{seed}}", tmp_path / "out"
    arguments = [command, f"{command} --gain 0.1", "--metric", "val_loss", "--out", str(out)]
    run_versus(*arguments, "--seeds", "3")
    path = tmp_path / "train.py"
    path.write_text(path.read_text() + "# a change\n")
    assert f"{path} has changed" in fail_versus(*arguments, "--seeds", "4", "--resume")


def test_another_comparison_gets_another_folder(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [f"{script} --seed {{seed}}", f"{script} --seed {{seed}} --gain 0.1", "--metric", "val_loss"]
    run_versus(*arguments, "--seeds", "3")
    run_versus(*arguments[:1], f"{arguments[1]}5", *arguments[2:], "--seeds", "3")
    assert {path.parent.name for path in Path("runs").glob("*/comparison.json")} == {"versus", "versus-2"}
    assert "runs/versus exists; continue it with --resume" in fail_versus(*arguments, "--seeds", "3")
    assert run_versus(*arguments, "--seeds", "4", "--resume")["report"] == "runs/versus/report.html"


def test_runs_share_no_files_of_the_metric(script: str, tmp_path: Path) -> None:
    command = f"{script} --seed {{seed}}"
    arguments = [command, f"{command} --gain 0.1", "--metric", "val_loss", "--out", str(tmp_path / "out")]
    assert "parallel runs would all write log.csv" in fail_versus(
        *arguments, "--metric-file", "log.csv", "--workers", "2"
    )
    assert "scores.csv needs {out}" in fail_versus(*arguments, "--example-scores", "scores.csv")


def test_a_perplexity_is_positive(tmp_path: Path) -> None:
    command = f"{sys.executable} -c 'print(\"ppl=-1.5\")' {{seed}}"
    result = CliRunner().invoke(app, ["versus", command, command, "--metric", "ppl", "--out", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert "ppl is -1.5, but perplexities are positive" in " ".join(result.stdout.split())


def git(folder: Path, *arguments: str) -> None:
    environment = {
        **os.environ,
        **{f"GIT_{name}_{value}": "a@b" for name in ("AUTHOR", "COMMITTER") for value in ("NAME", "EMAIL")},
    }
    subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, env=environment)


@pytest.fixture
def repository(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a repository in which the branch `better` improves the script of `main`."""
    folder = tmp_path / "repository"
    folder.mkdir()
    source = (tmp_path / "train.py").read_text()
    git(folder, "init", "-q", "-b", "main")
    for branch, gain in (("main", "0.0"), ("better", "0.2")):
        if branch != "main":
            git(folder, "checkout", "-q", "-b", branch)
        (folder / "train.py").write_text(
            source.replace(
                'default=0.0)\nparser.add_argument("--fail"', f'default={gain})\nparser.add_argument("--fail"'
            )
        )
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", branch)
    git(folder, "checkout", "-q", "main")
    monkeypatch.chdir(folder)
    return folder


def test_revisions_run_in_worktrees_and_their_diff_is_reported(repository: Path, tmp_path: Path) -> None:
    command = ["--", sys.executable, "train.py", "--seed", "{seed}"]
    out = ["--metric", "val_loss", "--seeds", "3", "--out", str(tmp_path / "out")]
    findings = run_versus_revisions("main", "better", out, command)
    assert findings["verdicts"][0]["outcome"] == "helped"
    assert '+parser.add_argument("--gain", type=float, default=0.2)' in findings["versus"]["diffs"]["better"]
    (repository / "train.py").write_text("raise SystemExit('changed')\n")
    message = fail_versus("--revisions", "main", "better", *out, *command)
    assert "uncommitted changes in train.py; commit or stash them" in message
    assert "unknown revision 'nowhere'; branches and tags: better, main" in fail_versus(
        "--revisions", ".", "nowhere", *out[:-1], str(tmp_path / "o2"), *command
    )


def test_the_working_tree_is_compared_with_its_patch_recorded(repository: Path, tmp_path: Path) -> None:
    source = (repository / "train.py").read_text()
    (repository / "train.py").write_text(
        source.replace("3.0 -", "2.5 + 0.1 * random.Random(-arguments.seed).random() -")
    )
    findings = run_versus_revisions(
        "main",
        ".",
        ["--metric", "val_loss", "--seeds", "3", "--out", str(tmp_path / "out")],
        ["--", sys.executable, "train.py", "--seed", "{seed}"],
    )
    assert findings["verdicts"][0]["outcome"] == "helped"
    assert "with uncommitted changes" in findings["versus"]["revisions"]["changes"]


def test_data_that_git_does_not_track_is_linked_into_worktrees(repository: Path, tmp_path: Path) -> None:
    (repository / "data").mkdir()
    (repository / "data" / "value.txt").write_text("1.5")
    content = ["--", sys.executable, "-c", "import sys; print('val_loss=', open('data/value.txt').read())", "{seed}"]
    options = ["--revisions", "main", "better", "--metric", "val_loss", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, ["versus", *options, *content])
    assert result.exit_code == 1
    assert "are not in the worktree of a revision: --link PATH" in " ".join(result.stdout.split())
    result = CliRunner().invoke(app, ["versus", *options, "--link", "data", "--json", *content])
    assert json.loads(result.stdout)["primary_scores"]["better"][0] == [0, 1.5]
    assert "nowhere does not exist, so it cannot be linked" in fail_versus(
        *options[:-1], str(tmp_path / "o2"), "--link", "nowhere", *content
    )
    assert "train.py is part of the revision" in fail_versus(
        *options[:-1], str(tmp_path / "o3"), "--link", "train.py", *content
    )


def test_an_interrupted_checkout_is_repeated(repository: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    commit = subprocess.run(["git", "rev-parse", "main"], cwd=repository, check=True, capture_output=True, text=True)
    partial = out / "worktrees" / f"{commit.stdout[:12]}.partial"
    git(repository, "worktree", "add", "--detach", str(partial), "main")
    (partial / "train.py").unlink()
    command = ["--", sys.executable, "train.py", "--seed", "{seed}"]
    options = ["--metric", "val_loss", "--seeds", "3", "--out", str(out)]
    assert run_versus_revisions("main", "better", options, command)["verdicts"][0]["outcome"] == "helped"


def test_the_workflow_of_the_documentation_comments_the_verdict(repository: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "versus.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    lines = [line.strip() for line in block.splitlines()]
    compare = f"{lines[lines.index('- run: >') + 1]} {lines[lines.index('- run: >') + 2]}"
    compare = compare.replace("origin/${{ github.base_ref }} HEAD", "main better").replace("python", sys.executable)
    report, remove_charts, comment = lines[lines.index("run: |") + 1 : lines.index("run: |") + 4]
    for command in (compare, report):
        assert CliRunner().invoke(app, shlex.split(command)[1:]).exit_code == 0, command
    subprocess.run(remove_charts, cwd=repository, shell=True, check=True)
    text = (repository / comment.removeprefix("gh pr comment ${{ github.event.number }} --body-file ")).read_text()
    assert "**helped**" in text
    assert "![" not in text
    assert "Figure" not in text


def run_versus_revisions(baseline: str, variant: str, options: list[str], command: list[str]) -> dict[str, Any]:
    result = CliRunner().invoke(
        app, ["versus", "--revisions", baseline, variant, *options, "--json", *command], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    findings: dict[str, Any] = json.loads(result.stdout)
    return findings


def test_killed_and_resumed_comparisons_give_the_same_numbers(script: str, tmp_path: Path) -> None:
    arguments = [f"{script} --seed {{seed}} --sleep 0.05", f"{script} --seed {{seed}} --gain 0.1 --sleep 0.05"]
    options = ["--metric", "val_loss", "--seeds", "3"]
    expected = run_versus(*arguments, *options, "--out", str(tmp_path / "whole"))["primary_scores"]
    out = tmp_path / "killed"
    for attempt in range(4):
        process = subprocess.Popen(
            [sys.executable, "-m", "headtohead.cli", "versus", *arguments, *options, "--out", str(out), "--resume"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 60
        while len(list(out.glob("*/seed-*/run.json"))) <= attempt and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    findings = run_versus(*arguments, *options, "--out", str(out), "--resume")
    assert findings["primary_scores"] == expected


LEFTOVER = """
import os, pathlib, subprocess, sys, time
if sys.argv[1] == "0":
    pathlib.Path("pid").write_text(str(os.getpid()))
    if not pathlib.Path("second").exists():
        time.sleep(600)
print("val_loss=", int(sys.argv[1]) + 1)
"""


def test_a_process_that_outlived_its_comparison_is_ended(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LEFTOVER)
    command = f"{sys.executable} train.py {{seed}}"
    options = [command, f"{command} x", "--metric", "val_loss", "--seeds", "3", "--out", "out", "--resume"]
    arguments = [sys.executable, "-m", "headtohead.cli", "versus", *options, "--json"]
    process = subprocess.Popen(arguments, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    pid = tmp_path / "pid"
    deadline = time.monotonic() + 120
    while not (pid.is_file() and pid.read_text()) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()  # the parent only: the run goes on
    process.wait()
    leftover = psutil.Process(int(pid.read_text()))
    assert leftover.is_running()
    (tmp_path / "second").touch()
    result = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert json.loads(result.stdout)["verdicts"][0]["seeds"] == 3
    assert not leftover.is_running() or leftover.status() == psutil.STATUS_ZOMBIE
