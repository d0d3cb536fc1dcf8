"""`h2h verify FOLDER...` prints one row per folder, and an invalid folder does not affect the others."""

import csv
import io
import json
import shutil

import pytest
from typer.testing import CliRunner

from headtohead import safe_open
from headtohead.cli import app
from headtohead.errors import RunFolderError
from headtohead.report import write


def test_many_folders_are_verified_one_row_each(finished_runs, tmp_path):
    good = shutil.copytree(finished_runs, tmp_path / "good")
    damaged = shutil.copytree(good, tmp_path / "damaged")
    (damaged / "findings.json").write_text("{" + '"a": [' * 5000)
    linked = shutil.copytree(good, tmp_path / "linked")
    (linked / "corpus.json").unlink()
    (linked / "corpus.json").symlink_to(good / "corpus.json")
    empty = tmp_path / "=empty"
    empty.mkdir()
    folders = [str(folder) for folder in (damaged, good, linked, empty, tmp_path / "missing")]
    as_csv = CliRunner().invoke(app, ["verify", "--csv", *folders])
    assert as_csv.exit_code == 1, as_csv.output
    rows = list(csv.DictReader(io.StringIO(as_csv.stdout)))
    assert [row["folder"] for row in rows] == folders
    assert [row["result"] for row in rows] == ["failed", "passed", "failed", "failed", "failed"]
    assert "findings.json" in rows[0]["problem"]
    assert "is a link" in rows[2]["problem"]
    as_json = json.loads(CliRunner().invoke(app, ["verify", "--json", *folders]).stdout)
    assert [row["passed"] for row in as_json] == [row["result"] == "passed" for row in rows]
    only_good = CliRunner().invoke(app, ["verify", str(good), str(good)])
    assert only_good.exit_code == 0, only_good.output
    assert only_good.stdout.count("passed") == 2


def test_a_renamed_folder_with_reports_passes(finished_runs, tmp_path):
    folder = shutil.copytree(finished_runs, tmp_path / "as-written")
    write(folder, ["html", "md"])
    renamed = folder.rename(tmp_path / "name-of-a-student")
    result = CliRunner().invoke(app, ["verify", str(renamed)])
    assert result.exit_code == 0, result.output


def test_files_with_other_names_are_neither_trusted_nor_appended_to(finished_runs, tmp_path):
    folder = shutil.copytree(finished_runs, tmp_path / "linked")
    (tmp_path / "elsewhere").hardlink_to(folder / "journal.jsonl")
    result = CliRunner().invoke(app, ["verify", "--json", str(folder)])
    failed = [check["observation"] for check in json.loads(result.stdout) if not check["passed"]]
    assert len(failed) == 1
    assert "journal.jsonl: has 2 names (hard links)" in failed[0]
    with pytest.raises(RunFolderError, match=r"journal\.jsonl has another name \(hard link\); refusing to write to it"):
        safe_open.append_to_file(folder / "journal.jsonl")
