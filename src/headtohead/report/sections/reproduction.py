"""Section on how to reproduce the experiment: command, seeds, corpus, versions and settings."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from headtohead.experiment.schemas import Findings
from headtohead.presentation.section import Block, Code, HtmlBlock, KeyValueList, Paragraph, Section
from headtohead.presentation.table import Table, make_table, make_text_columns
from headtohead.report.context import ReportContext


def build_reproduction_section(context: ReportContext) -> Section:
    """Return everything needed to repeat the experiment. Always present."""
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
        blocks.append(Code(shlex.join([Path(command[0]).name, *command[1:]])))
    if present_details := {name: str(detail) for name, detail in details.items() if detail not in (None, "")}:
        blocks.append(KeyValueList(present_details))
    if (versions := build_versions_table(findings)).rows:
        blocks.append(HtmlBlock("facts", {"facts": findings.versions}, [versions]))
    if experiment:
        settings = json.dumps(experiment.model_dump(mode="json"), indent=2, ensure_ascii=False)
        blocks.append(Code(settings, summary="All settings"))
    note = "All numbers are also in findings.json beside the runs, and in this page as JSON."
    blocks.append(Paragraph(note, "notes"))
    return Section("reproduce", "How to reproduce", blocks, "How to reproduce")


def build_versions_table(findings: Findings) -> Table:
    return make_table("versions", "Versions", "", make_text_columns("package", "version"), findings.versions.items())
