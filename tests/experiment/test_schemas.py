"""Pydantic models of run-folder files: documentation, schema version, round trip."""

import subprocess
import sys
from pathlib import Path

import pytest

from headtohead.errors import RunFolderError
from headtohead.experiment import schemas

ROOT = Path(__file__).parents[2]


def test_documentation_and_json_schemas_are_up_to_date():
    command = [sys.executable, str(ROOT / "tools" / "schemas.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_a_file_of_version_0_1_is_rejected_in_one_sentence(tmp_path):
    (tmp_path / "start.json").write_text('{"schema": 1, "tensors": {}}')
    with pytest.raises(RunFolderError, match=r"written by Head to Head 0\.1 \(schema 1\)"):
        schemas.read_record(tmp_path / "start.json", schemas.StartFile)


def test_findings_survive_a_round_trip_through_json():
    findings = schemas.Findings(metric="accuracy", primary_scores={"baseline": [(0, 0.5)]})
    assert schemas.Findings.model_validate(findings.to_json()) == findings
