"""Comparisons of commands end to end, through the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headtohead.cli import app
from headtohead.errors import HeadToHeadError
from headtohead.versus.comparison import open_comparison


def run_versus(*arguments: str) -> dict[str, Any]:
    """Run `h2h versus ... --json` and return its output."""
    result = CliRunner().invoke(app, ["versus", *arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    findings: dict[str, Any] = json.loads(result.stdout)
    return findings


def fail_versus(*arguments: str) -> str:
    """Run `h2h versus` with arguments that it refuses; return the message."""
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
    assert "--gain 0.2" in page
    assert "val_loss" in page
    assert [point[0] for point in findings["curves"]["baseline"]["val_loss"]["0"]] == [0, 20, 40]


def test_runs_are_interleaved_and_journaled(script: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = f"{script} --seed {{seed}}"
    run_versus(command, f"{command} --gain 0.1", "--metric", "val_loss", "--out", str(out), "--seeds", "3")
    events = [json.loads(line) for line in (out / "journal.jsonl").read_text().splitlines()]
    assert [(event["variant"], event["seed"]) for event in events if event["event"] == "run"] == [
        ("baseline", 0),
        ("variant", 0),
        ("baseline", 1),
        ("variant", 1),
        ("baseline", 2),
        ("variant", 2),
        ("baseline", 0),  # repeated, to see whether equal seeds give equal values
    ]


def test_seeds_are_added_with_resume_and_nothing_runs_twice(script: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    sides = [f"{script} --seed {{seed}}", f"{script} --seed {{seed}} --gain 0.1", "--metric", "val_loss"]
    run_versus(*sides, "--out", str(out), "--seeds", "3")
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/seed-*/run.json")}
    assert len(before) == 7
    findings = run_versus(*sides, "--out", str(out), "--seeds", "4", "--resume")
    assert findings["verdicts"][0]["seeds"] == 4
    assert findings["interim_analyses"] == [3, 4]
    later = 0.85 * 0.05 * (2 / 3 - 2 / 4)
    assert findings["verdicts"][0]["adjusted_confidence"] == pytest.approx(1 - later)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert "exists; continue it with --resume" in fail_versus(*sides, "--out", str(out))
    changed = [sides[0], f"{sides[1]} --sleep 0", *sides[2:]]
    assert "holds another comparison" in fail_versus(*changed, "--out", str(out), "--resume")


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
    assert "exactly the same values with every seed" in verdict["withheld"][0]


def list_observations(findings: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    """Return answer and concern of each observation by question."""
    return {
        item["question"]: (item["answer"], item.get("is_concern", False)) for item in findings["versus"]["observations"]
    }


def test_equal_seeds_are_compared_from_outside(script: str, tmp_path: Path) -> None:
    command = f"{script} --seed {{seed}}"
    sides = [command, f"{command} --gain 0.1", "--metric", "val_loss", "--seeds", "3"]
    observations = list_observations(run_versus(*sides, "--out", str(tmp_path / "a")))
    repeats = "Does baseline repeat its values with the same seed?"
    assert observations[repeats] == ("yes: all 3 values of seed 0 are equal bit for bit", False)
    observations = list_observations(run_versus(*sides, "--no-repeat", "--out", str(tmp_path / "b")))
    assert observations[repeats] == ("not known: no run was repeated", False)
    assert not list((tmp_path / "b").glob("baseline/*-repeat"))
    observations = list_observations(run_versus(command, command, *sides[2:], "--out", str(tmp_path / "c")))
    answer, is_concern = observations["Does variant change any value of the metric?"]
    assert answer.startswith("no: all values of 3 seeds are equal")
    assert is_concern
    assert observations["Do baseline and variant report the same first value with the same seed?"][0] == "3 of 3 seeds"


def test_a_baseline_that_does_not_repeat_its_values_is_named(tmp_path: Path) -> None:
    path = tmp_path / "random_loss.py"
    path.write_text("import random, sys\nprint('val_loss=', random.random())\n")
    command = f"{sys.executable} {path} {{seed}}"
    findings = run_versus(
        command, f"{command} x", "--metric", "val_loss", "--seeds", "3", "--out", str(tmp_path / "out")
    )
    answer, is_concern = list_observations(findings)["Does baseline repeat its values with the same seed?"]
    first = findings["primary_scores"]["baseline"][0][1]
    assert answer.startswith(f"no: seed 0 gives {first:.6g} and ")
    assert is_concern


def test_a_repeated_run_without_a_value_is_named(tmp_path: Path) -> None:
    path = tmp_path / "once.py"
    path.write_text(
        "import pathlib, sys\n"
        "marker = pathlib.Path(sys.argv[2] + '-' + sys.argv[1])\n"
        "sys.exit('no second run') if marker.exists() else marker.touch()\n"
        "print('val_loss=', int(sys.argv[1]) + 1)\n"
    )
    sides = [f"{sys.executable} {path} {{seed}} {tmp_path / name}" for name in ("first", "second")]
    findings = run_versus(*sides, "--metric", "val_loss", "--seeds", "3", "--out", str(tmp_path / "out"))
    answer = list_observations(findings)["Does baseline repeat its values with the same seed?"]
    assert answer == ("no: the second run has no value (failed)", True)


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
    runs = open_comparison(tmp_path / "o").read_runs()
    assert {run.status for by_seed in runs.values() for run in by_seed.values()} == {"timeout"}


def test_a_file_of_the_run_is_read_and_the_shell_is_used_only_on_request(script: str, tmp_path: Path) -> None:
    command = f"{script} --seed {{seed}} --quiet --json {{out}}/result.json"
    findings = run_versus(
        *(command, f"{command} --gain 0.2", "--metric", "final.val_loss", "--source", "{out}/result.json"),
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
    assert seeds == {"baseline": list(range(6)), "repeated": list(range(6, 12))}
    noise = findings["versus"]["noise"]
    assert noise["standard_deviation"] == pytest.approx(0.03, rel=0.6)
    effects = [noise["detectable_effects"][seeds] for seeds in ("3", "5", "8", "12", "20")]
    assert effects == sorted(effects, reverse=True)


def test_bad_requests_are_refused_before_anything_runs(script: str, tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "out")]
    assert "no {seed}" in fail_versus(script, f"{script} --gain 1", "--metric", "val_loss", *out)
    command = f"{script} --seed {{seed}}"
    assert "--metric is needed" in fail_versus(command, command, *out)
    assert "are lower or higher values of 'speed' better?" in fail_versus(command, command, "--metric", "speed", *out)
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


def git(folder: Path, *arguments: str) -> None:
    environment = {
        **os.environ,
        **{f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }
    subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, env=environment)


@pytest.fixture
def repository(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository in which the branch `better` improves the script of `main`."""
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
    (repository / "train.py").write_text(source.replace("3.0 -", "2.5 -"))
    findings = run_versus_revisions(
        "main",
        ".",
        ["--metric", "val_loss", "--seeds", "3", "--out", str(tmp_path / "out")],
        ["--", sys.executable, "train.py", "--seed", "{seed}"],
    )
    assert findings["verdicts"][0]["outcome"] == "helped"
    assert "with uncommitted changes" in findings["versus"]["revisions"]["changes"]


def run_versus_revisions(baseline: str, variant: str, options: list[str], command: list[str]) -> dict[str, Any]:
    result = CliRunner().invoke(
        app, ["versus", "--revisions", baseline, variant, *options, "--json", *command], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    findings: dict[str, Any] = json.loads(result.stdout)
    return findings


def test_killed_and_resumed_comparisons_give_the_same_numbers(script: str, tmp_path: Path) -> None:
    sides = [f"{script} --seed {{seed}} --sleep 0.05", f"{script} --seed {{seed}} --gain 0.1 --sleep 0.05"]
    options = ["--metric", "val_loss", "--seeds", "3"]
    expected = run_versus(*sides, *options, "--out", str(tmp_path / "whole"))["primary_scores"]
    out = tmp_path / "killed"
    for attempt in range(4):
        process = subprocess.Popen(
            [sys.executable, "-m", "headtohead.cli", "versus", *sides, *options, "--out", str(out), "--resume"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 60
        while len(list(out.glob("*/seed-*/run.json"))) <= attempt and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    findings = run_versus(*sides, *options, "--out", str(out), "--resume")
    assert findings["primary_scores"] == expected
