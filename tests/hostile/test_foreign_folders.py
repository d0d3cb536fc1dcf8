"""Untrusted experiment folders and the command line: links, sizes, versions, memory limits, names."""

import html
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from headtohead import atomic_io
from headtohead.atomic_io import write_text
from headtohead.errors import RunFolderError
from headtohead.experiment import run_folder, trust
from headtohead.experiment.provenance.environment_comparison import EnvironmentChangedWarning
from headtohead.findings import compute
from headtohead.json_files import CHECKSUM_KEY, read_json, write_json
from headtohead.presentation.renderers.csv_tables import render_csv
from headtohead.presentation.table import make_table, make_text_columns
from headtohead.report import write
from headtohead.runner import run_experiment
from headtohead.runner.verification.verify import verify_experiment


@pytest.fixture
def foreign(tmp_path: Path, finished_runs: Path) -> Path:
    return Path(shutil.copytree(finished_runs, tmp_path / "foreign"))


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    path = tmp_path / "precious"
    path.write_text("precious")
    return path


def run_h2h(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headtohead.cli", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        **options,
    )


# ---- row 2: writing through links


def test_files_are_not_written_through_a_planted_temporary_name(tmp_path, precious):
    (tmp_path / f".report.html.{os.getpid()}.part").symlink_to(precious)
    write_text(tmp_path / "report.html", "new")
    assert precious.read_text() == "precious"
    assert (tmp_path / "report.html").read_text() == "new"


def test_a_link_in_the_place_of_a_report_is_replaced(foreign, precious):
    (foreign / "report.html").symlink_to(precious)
    write(foreign, ["html"])
    assert precious.read_text() == "precious"


@pytest.mark.parametrize(("name", "report_format"), [("report-tables", "csv"), ("report-charts", "chart-svg")])
def test_tables_and_charts_are_not_written_into_a_linked_folder(foreign, tmp_path, name, report_format):
    outside = tmp_path / "outside"
    outside.mkdir()
    (foreign / name).symlink_to(outside)
    with pytest.raises(RunFolderError, match=f"{name} is a link"):
        write(foreign, [report_format])
    assert not list(outside.iterdir())


def test_a_lock_is_not_taken_through_a_link(foreign, precious):
    (foreign.parent / f".{foreign.name}.lock").symlink_to(precious)
    with pytest.raises(RunFolderError, match="is a link"), run_folder.lock_folder(foreign):
        pass
    assert precious.read_text() == "precious"


# ---- links and sizes while reading


@pytest.mark.parametrize(
    "name", ["experiment.json", "findings.json", "baseline/seed-0/metrics.jsonl", "baseline", "alibi/seed-1"]
)
def test_links_in_a_folder_are_not_followed(foreign, tmp_path, name):
    elsewhere = tmp_path / "elsewhere"
    (foreign / name).rename(elsewhere)
    (foreign / name).symlink_to(elsewhere)
    with pytest.raises(RunFolderError, match="is a link"):
        compute.compute_findings(run_folder.open_experiment_runs(foreign))
    with pytest.raises(RunFolderError, match="is a link"):
        verify_experiment(foreign)


@pytest.mark.parametrize(
    "name", ["findings.json", "baseline/seed-0/metrics.jsonl", "baseline/seed-0/scores.safetensors"]
)
def test_files_beyond_the_limit_are_rejected_before_they_are_read(foreign, name):
    with (foreign / name).open("ab") as file:
        file.truncate(40_000_000_000)
    checks = verify_experiment(foreign)
    assert any(not check.passed and name in f"{check.location} {check.observation}" for check in checks)


def test_values_are_counted_before_they_are_parsed(tmp_path):
    path = tmp_path / "many.json"
    path.write_bytes(b"[" + b"[]," * 3_000_000 + b"[]]")
    with pytest.raises(RunFolderError, match=r"many\.json.*more than 2,000,000 values"):
        read_json(path)


# ---- row 11: versions and devices


def mix_versions(folder: Path) -> None:
    """Rewrite start.json of half of the runs as if they came from another machine."""
    for run in (folder / "alibi").glob("seed-*"):
        start = read_json(run / "start.json")
        start["device"] = "cuda"
        start["versions"] = {**start["versions"], "torch": "1.13.0", "system": "Darwin arm64"}
        write_json(run / "start.json", start)
        result = read_json(run / "result.json")
        result.pop(CHECKSUM_KEY, None)
        result["sha256"]["start.json"] = atomic_io.compute_sha256(run / "start.json")
        write_json(run / "result.json", result, with_checksum=True)


def test_mixed_versions_and_devices_are_reported(foreign):
    mix_versions(foreign)
    runs = run_folder.open_experiment_runs(foreign)
    findings = compute.write_findings(runs)
    messages = [warning.message for warning in findings.warnings]
    assert any("torch 1.13.0" in message and "cuda" in message and "Darwin arm64" in message for message in messages)
    write(foreign, ["md"])
    assert "1.13.0" in (foreign / "report.md").read_text()
    checks = verify_experiment(foreign)
    assert any("torch" in check.observation and "cuda" in check.observation for check in checks)


def test_resuming_on_another_machine_warns(foreign, monkeypatch, recwarn):
    experiment = run_folder.open_experiment_runs(foreign).experiment
    run_experiment.run_experiment(experiment, foreign, num_workers=1, resume=True)
    assert not [warning for warning in recwarn if issubclass(warning.category, EnvironmentChangedWarning)]
    versions = {**run_experiment.collect_versions(), "torch": "1.13.0", "processor": "M1", "cpu": "NEON"}
    monkeypatch.setattr(run_experiment, "collect_versions", lambda: versions)
    torch_version = f"torch {re.escape(torch.__version__)} \\(4 runs\\), here 1.13.0"
    message = f"trained elsewhere: {torch_version}; processor .*, here M1; cpu .*, here NEON"
    with pytest.warns(EnvironmentChangedWarning, match=message):
        run_experiment.run_experiment(experiment, foreign, num_workers=1, resume=True)


# ---- row 14: address-space limit


def limit_address_space() -> None:
    """`ulimit -v` is common on clusters. The renderer reserves more address space than that and aborts its process."""
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))


def test_reports_are_written_under_an_address_space_limit(foreign):
    result = run_h2h("report", str(foreign), "--format", "html", "--format", "md", preexec_fn=limit_address_space)
    assert result.returncode == 0, f"exit code {result.returncode}: {result.stderr[-300:]}"
    page = (foreign / "report.html").read_text()
    for chart in ("forest", "curves"):
        message = f"chart '{chart}' could not be rendered: the chart renderer was killed"
        assert message in result.stderr
        assert message in html.unescape(page)
    assert "limited to 6,144 MiB" in result.stderr
    assert (foreign / "report.md").is_file()


def test_missing_charts_are_an_error_if_they_were_requested(foreign):
    formats = ("--format", "chart-png", "--format", "csv")
    result = run_h2h("report", str(foreign), *formats, preexec_fn=limit_address_space)
    assert result.returncode == 1
    assert "requested charts could not be rendered; everything else was written" in result.stderr
    assert list((foreign / "report-tables").glob("*.csv"))


# ---- row 16: names and terminals, settings that contradict each other


def test_a_variant_that_does_not_fit_the_model_is_reported(foreign):
    content = read_json(foreign / "experiment.json")
    content.pop(CHECKSUM_KEY, None)
    (foreign.parent / "net.py").write_text("class Net: pass\n")
    content["experiment"]["model"] = {"module": f"{foreign.parent / 'net.py'}:Net", "context": 8}
    write_json(foreign / "experiment.json", content, with_checksum=True)
    trust.trust_files([foreign.parent / "net.py"])
    commands = (
        ["headtohead.web.resume_entrypoint"],
        ["headtohead.cli", "verify", "--json"],
        ["headtohead.cli", "report"],
    )
    for command in commands:
        arguments = [sys.executable, "-m", *command, str(foreign)]
        result = subprocess.run(arguments, check=False, capture_output=True, text=True, timeout=300)
        assert result.returncode == (1 if "verify" in command else 2), result.stderr
        assert "Traceback" not in result.stderr
        assert "variant alibi" in result.stderr + result.stdout
        assert "position" in result.stderr + result.stdout


def test_a_folder_name_that_is_not_utf8_is_reported(foreign):
    renamed = foreign.rename(os.fsdecode(os.fsencode(foreign.parent) + b"/not-\xff-utf8"))
    for command in ("report", "verify"):
        result = run_h2h(command, str(renamed))
        assert "Traceback" not in result.stderr
        assert result.returncode == 0, result.stderr


def test_output_works_on_a_terminal_without_unicode(foreign):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    result = run_h2h("verify", str(foreign), env=environment)
    assert "Traceback" not in result.stderr
    assert "checks passed" in result.stdout


def test_a_cache_that_cannot_be_created_does_not_stop_reading(foreign, tmp_path):
    (tmp_path / "file").write_text("")
    result = run_h2h("report", str(foreign), env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "file" / "cache")})
    assert result.returncode == 0, result.stderr


# ---- row 18: spreadsheets


@pytest.mark.parametrize("text", [" =1+1", "\u00a0=1+1", "\n=1+1", "\t @SUM(A1)", "\uff1d1+1", "=1+1", "\x00=1"])
def test_formulas_are_neutralised_in_csv(text):
    table = make_table("t", "T", "", make_text_columns("name"), [(text,)])
    assert render_csv(table).partition("\n")[2].lstrip('"').startswith("'")


# ---- modules in the working folder


def test_modules_of_the_working_folder_are_not_imported(foreign, tmp_path):
    """Child processes must not import them either: `python -m` adds the working folder to the module path."""
    canary = tmp_path / "canary"
    for name in ("altair", "json", "numpy", "sitecustomize", "tokenizers", "torch", "vl_convert"):
        (foreign / f"{name}.py").write_text(f"open({str(canary)!r}, 'a').write({name!r})\n")
    script = "import sys; from headtohead.cli import main; sys.exit(main())"
    for arguments in (
        ["report", ".", "--format", "html"],
        ["generate", "baseline/seed-0", "the people", "--max-new-tokens", "2"],
    ):
        command = [sys.executable, "-P", "-c", script, *arguments]
        result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300, cwd=foreign)
        assert result.returncode in (0, 1), result.stderr
        assert not canary.exists(), f"{arguments}: {canary.read_text()}"
