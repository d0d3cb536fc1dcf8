"""Section on reproducing the experiment: command, seeds, corpus, code, versions and settings."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headtohead import safe_open
from headtohead.errors import RunFolderError
from headtohead.experiment.run_folder import ExperimentRuns
from headtohead.experiment.schemas import Findings
from headtohead.experiment.trust import CUSTOM_CODE_FOLDER
from headtohead.presentation.command_line import format_command
from headtohead.presentation.section import Block, Code, HtmlBlock, KeyValueList, Paragraph, Section, make_table_blocks
from headtohead.presentation.table import Table, make_table, make_text_columns
from headtohead.report.context import ReportContext


def build_reproduction_section(context: ReportContext) -> Section:
    """Return everything needed to repeat the experiment. This section is always present."""
    findings, experiment = context.findings, context.experiment
    command = findings.command
    corpus = findings.corpus
    results = findings.scores
    seeds = {seed for by_split in results.values() for pairs in by_split.values() for seed, _ in pairs}
    details = {
        "Experiment": experiment.name if experiment else None,
        "Seeds": ", ".join(map(str, sorted(seeds))),
        "Corpus": corpus.origin if corpus else None,
        "Corpus SHA-256": corpus.digest if corpus else None,
    }
    blocks: list[Block] = []
    if command:
        blocks.append(Code(format_command(command)))
    if present_details := {name: str(detail) for name, detail in details.items() if detail not in (None, "")}:
        blocks.append(KeyValueList(present_details))
    if (versions := build_versions_table(findings)).rows:
        blocks.append(HtmlBlock("facts", {"facts": findings.versions}, [versions]))
    code_files = list_code_files(context.folder)
    blocks += make_table_blocks(
        make_table(
            "code",
            "Code files",
            "Plugins, networks and the modules that they import.",
            make_text_columns("file", sha256="SHA-256"),
            [[file.name, file.digest] for file in code_files],
        )
    )
    blocks += [Code(file.text, summary=file.name) for file in code_files if file.text]
    if experiment:
        settings = json.dumps(experiment.model_dump(mode="json"), indent=2, ensure_ascii=False)
        blocks.append(Code(settings, summary="All settings"))
    note = "All numbers are also in findings.json beside the runs."
    blocks.append(Paragraph(note, "notes"))
    return Section("reproduce", "How to reproduce", blocks, "How to reproduce")


@dataclass(frozen=True)
class CodeFile:
    """A user code file that trials executed."""

    name: str
    digest: str
    text: str
    """empty if no run folder has a copy with this digest"""


def list_code_files(folder: Path | None) -> list[CodeFile]:
    """Return the plugins, networks and imported modules recorded in experiment.json, with their source code."""
    if folder is None or not (folder / "experiment.json").is_file():
        return []
    runs = ExperimentRuns(folder)
    try:
        dependencies = runs.metadata.dependencies
    except RunFolderError:  # the report shows what findings.json contains
        return []
    digests = {(name, digest): None for by_name in dependencies.values() for name, digest in by_name.items()}
    folders = [
        runs.run(variant, seed).folder / CUSTOM_CODE_FOLDER for variant in dependencies for seed in runs.seeds(variant)
    ]
    return [
        CodeFile(name, digest, _read_copy(folders, name, digest))
        for name, digest in digests
        if name.endswith(".py") and ".." not in name
    ]


def _read_copy(folders: Sequence[Path], name: str, digest: str) -> str:
    """Return the contents of the first copy with this SHA-256, or an empty string if there is none."""
    for folder in folders:
        with contextlib.suppress(RunFolderError):
            content = safe_open.read_file(folder / name)
            if hashlib.sha256(content).hexdigest() == digest:
                return content.decode(errors="replace")
    return ""


def build_versions_table(findings: Findings) -> Table:
    return make_table("versions", "Versions", "", make_text_columns("package", "version"), findings.versions.items())
