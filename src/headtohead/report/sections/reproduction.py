"""Section on reproducing the experiment: command, seeds, corpus, code, versions and settings."""

from __future__ import annotations

import json

from headtohead.experiment.recorded_code import read_recorded_code_files
from headtohead.presentation.command_line import format_command
from headtohead.presentation.section import Block, CodeBlock, KeyValueList, Section, make_table_blocks
from headtohead.presentation.table import make_table, make_text_columns
from headtohead.report.context import ReportContext


def build_reproduction_section(context: ReportContext) -> Section:
    """Return everything needed to repeat the experiment. This section is always present."""
    findings, experiment, corpus = context.findings, context.experiment, context.findings.corpus
    seeds = {
        seed
        for variant_scores in findings.scores.values()
        for seed_scores in variant_scores.values()
        for seed, _ in seed_scores
    }
    details = {
        "Experiment": experiment.name if experiment else None,
        "Seeds": ", ".join(map(str, sorted(seeds))),
        "Corpus": corpus.origin if corpus else None,
        "Corpus SHA-256": corpus.digest if corpus else None,
        "Versions": ", ".join(f"{name} {version}" for name, version in findings.versions.items()),
        "All numbers": "findings.json in the folder of the experiment",
    }
    blocks: list[Block] = []
    if findings.command:
        blocks.append(CodeBlock(format_command(findings.command)))
    if present_details := {name: str(detail) for name, detail in details.items() if detail not in (None, "")}:
        blocks.append(KeyValueList(present_details))
    code_files = read_recorded_code_files(context.experiment_folder)
    blocks += make_table_blocks(
        make_table(
            "code",
            "Code files",
            "Plugins, networks and the modules that they import.",
            make_text_columns("file", sha256="SHA-256"),
            [[file.name, file.digest] for file in code_files],
        )
    )
    blocks += [CodeBlock(file.text, summary=file.name) for file in code_files if file.text]
    if experiment:
        settings = json.dumps(experiment.model_dump(mode="json"), indent=2, ensure_ascii=False)
        blocks.append(CodeBlock(settings, summary="All settings"))
    return Section("reproduce", "How to reproduce", blocks, "How to reproduce")
