"""The folder of a comparison is reported, verified and shown in the web app like that of an experiment."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headtohead.cli import app
from headtohead.errors import HeadToHeadError


@pytest.fixture
def folder(script: str, tmp_path: Path) -> Path:
    """Return the folder of a finished comparison."""
    out = tmp_path / "runs" / "gain"
    command = f"{script} --seed {{seed}}"
    arguments = [command, f"{command} --gain 0.2", "--metric", "val_loss", "--seeds", "3", "--out", str(out)]
    result = CliRunner().invoke(app, ["versus", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return out


def verify(folder: Path) -> dict[str, str]:
    """Run `h2h verify` and return the failed checks: location and observation."""
    result = CliRunner().invoke(app, ["verify", str(folder), "--json"])
    checks = json.loads(result.stdout)
    failed = {check["location"]: check["observation"] for check in checks if not check["passed"]}
    assert result.exit_code == (1 if failed else 0), result.output
    return failed


def test_reports_are_written_in_every_format(folder: Path) -> None:
    formats = ["html", "md", "tex", "csv", "chart-svg"]
    options = [word for name in formats for word in ("--format", name)]
    result = CliRunner().invoke(app, ["report", str(folder), *options, "--json"], catch_exceptions=False)
    names = {Path(path).name for path in json.loads(result.stdout)}
    assert {"report.html", "report.md", "report.tex"} <= names
    markdown = (folder / "report.md").read_text()
    for text in ("Is baseline deterministic given the seed?", "--gain 0.2", "helped"):
        assert text in markdown


def test_an_untouched_folder_is_verified_and_edits_are_reported(folder: Path, tmp_path: Path) -> None:
    assert verify(folder) == {}

    def edit(name: str, old: str, new: str) -> dict[str, str]:
        copy = tmp_path / "edited" / folder.name
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)
        path = copy / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))
        return verify(copy)

    log = "variant/seed-1/output.log"
    value = (folder / log).read_text().rsplit("val loss ", 1)[1].strip()
    failed = edit(log, value, "1.0000")
    assert failed[log] == "was changed since the run ended"
    assert "val_loss is" in failed["variant/seed-1"]
    assert failed.keys() == {log, "variant/seed-1"}
    assert "checksum" in edit("journal.jsonl", '"seed": 1', '"seed": 2')["journal.jsonl"]
    assert edit("findings.json", '"helped"', '"hurt"')["findings.json"]
    assert "was edited" in edit("report.html", "helped", "hurt")["report.html"]


def test_a_run_that_the_journal_does_not_record_is_reported(folder: Path) -> None:
    """A run.json of another comparison, with a valid checksum."""
    other = folder.parent / "other"
    shutil.copytree(folder, other)
    (other / "journal.jsonl").write_text("")
    assert "not recorded as it is: baseline/seed-0" in verify(other)["journal.jsonl"]
    shutil.rmtree(other / "variant" / "seed-2")
    assert "without a result: variant/seed-2" in verify(other)["seeds"]


def test_removed_runs_and_a_removed_journal_withhold_the_verdict(folder: Path, script: str) -> None:
    """Removing runs after their values are known must not change the verdict."""

    def read_reasons() -> list[str]:
        CliRunner().invoke(app, ["report", str(folder)], catch_exceptions=False)
        (verdict,) = json.loads((folder / "findings.json").read_text())["verdicts"]
        assert (verdict["outcome"] == "not comparable") == bool(verdict["withheld"])
        return [str(reason) for reason in verdict["withheld"]]

    assert read_reasons() == []
    shutil.move(folder / "variant" / "seed-1", folder.parent / "removed")
    (reason,) = read_reasons()
    assert reason.startswith("seed 1: lacks a run that journal.jsonl records")
    shutil.move(folder.parent / "removed", folder / "variant" / "seed-1")
    assert read_reasons() == []
    command = f"{script} --seed {{seed}}"
    arguments = [command, f"{command} --gain 0.2", "--metric", "val_loss", "--out", str(folder), "--resume"]
    for options, problem in (
        (["--seeds", "2"], "seeds can only be added"),
        (["--equivalence-margin", "0.3"], "margin"),
    ):
        with pytest.raises(HeadToHeadError, match=problem):
            CliRunner().invoke(app, ["versus", *arguments, "--seeds", "3", *options], catch_exceptions=False)
    (folder / "journal.jsonl").unlink()
    assert all("is not the one that journal.jsonl records" in reason for reason in read_reasons())


def test_verify_rejects_checks_that_need_a_model(folder: Path) -> None:
    result = CliRunner().invoke(app, ["verify", str(folder), "--retrain", "1"])
    assert isinstance(result.exception, HeadToHeadError)
    assert "compares commands, whose models are not known" in str(result.exception)


def test_the_web_app_lists_and_shows_a_comparison(folder: Path) -> None:
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    from starlette.testclient import TestClient

    from headtohead.web.app import create_app

    with TestClient(create_app(folder.parent), base_url="http://127.0.0.1") as client:
        (row,) = client.get("/api/experiments").json()
        assert (row["name"], row["state"], row["finished"], row["trials"]) == ("gain", "finished", 6, 6)
        assert row["verdicts"] == [{"variant": "variant", "outcome": "helped"}]
        page = client.get("/experiments/gain").text
        for text in ("Is baseline deterministic given the seed?", "helped", "Open the report", "--resume"):
            assert text in page
        state = client.get("/api/experiments/gain").json()
        assert [point[0] for point in state["curves"]["variant"]["val_loss"]["2"]] == [0, 20, 40]
        assert client.get("/experiments/gain/report/content").status_code == 200
