"""Sections on a comparison of training scripts: their commands, observations about fairness, and noise."""

from __future__ import annotations

from headtohead.presentation import number_format
from headtohead.presentation.section import Block, CodeBlock, Paragraph, Section, TableBlock
from headtohead.presentation.table import Cell, Table, make_numeric_columns, make_table, make_text_columns
from headtohead.report.context import ReportContext


def build_script_commands_section(context: ReportContext) -> Section | None:
    """Return the section with the command of each training script and the differences between their revisions."""
    versus = context.findings.versus
    if versus is None:
        return None
    columns = make_text_columns("variant", "command")
    rows = [[name, command] for name, command in versus.commands.items()]
    if versus.revisions:
        columns += make_text_columns("revision")
        rows = [[*row, versus.revisions.get(row[0], "")] for row in rows]
    blocks: list[Block] = [TableBlock(make_table("commands", "", "", columns, rows))]
    blocks += [CodeBlock(diff, summary=f"Changes of {name}") for name, diff in versus.diffs.items()]
    return Section("commands", "What changed", blocks)


def build_script_fairness_section(context: ReportContext) -> Section | None:
    """Return the section on whether the training scripts were compared fairly, such as with equal batches."""
    versus = context.findings.versus
    if versus is None or not versus.observations:
        return None
    note = (
        "Head to Head did not train these models. Whether they use future tokens, test data or the same text is not "
        "known; the scripts can record initial weights, batches and more with headtohead.record()."
    )
    table = build_script_fairness_table(context)
    return Section("observations", "Fairness", [TableBlock(table), Paragraph(note, "notes")])


def build_script_fairness_table(context: ReportContext) -> Table:
    """Return one row per observation about the fairness of a comparison of training scripts."""
    observations = context.findings.versus.observations if context.findings.versus else []
    rows = [[observation.question, observation.answer] for observation in observations]
    return make_table("observations", "", "", make_text_columns("question", "answer"), rows)


def build_script_noise_section(context: ReportContext) -> Section | None:
    """Return the section on the noise of a training script across seeds, and the smallest detectable change."""
    versus = context.findings.versus
    if versus is None or versus.noise is None:
        return None
    deviation = number_format.format_fixed(versus.noise.standard_deviation, 4)
    text = (
        f"The standard deviation of {versus.metric_name} over {versus.noise.seeds} seeds is {deviation}. The table "
        "lists the smallest change that so many seeds per variant detect with a probability of 80 %, if initial "
        "weights and batches are not paired."
    )
    return Section("noise", "Noise", [Paragraph(text), TableBlock(build_script_noise_table(context))])


def build_script_noise_table(context: ReportContext) -> Table:
    """Return the smallest change that each number of runs of a training script can detect."""
    versus = context.findings.versus
    assert versus is not None
    assert versus.noise is not None
    rows = [
        [seeds, Cell(number_format.format_fixed(effect, 4), effect)]
        for seeds, effect in versus.noise.detectable_effects.items()
    ]
    columns = make_numeric_columns(seeds="seeds per variant", effect="detectable change")
    return make_table("noise", "Detectable changes", "", columns, rows)
