"""Sections for a comparison of commands: what changed, what can be observed from outside, and noise."""

from __future__ import annotations

from headtohead.presentation import number_format
from headtohead.presentation.section import Block, Code, Paragraph, Section, TableBlock
from headtohead.presentation.table import Cell, Table, make_numeric_columns, make_table, make_text_columns
from headtohead.report.context import ReportContext


def build_commands_section(context: ReportContext) -> Section | None:
    """Return all variants' commands and the differences between their revisions."""
    versus = context.findings.versus
    if versus is None:
        return None
    columns = make_text_columns("variant", "command")
    rows = [[name, command] for name, command in versus.commands.items()]
    if versus.revisions:
        columns += make_text_columns("revision")
        rows = [[*row, versus.revisions.get(row[0], "")] for row in rows]
    blocks: list[Block] = [TableBlock(make_table("commands", "", "", columns, rows))]
    blocks += [Code(diff, summary=f"Changes of {name}") for name, diff in versus.diffs.items()]
    return Section("commands", "What changed", blocks)


def build_observations_section(context: ReportContext) -> Section | None:
    """Return what the runs reveal about whether the comparison is fair."""
    versus = context.findings.versus
    if versus is None or not versus.observations:
        return None
    note = (
        "Head to Head did not train these models. Whether they use future tokens, test data or the same text is not "
        "known; the scripts can record more evidence with headtohead.record()."
    )
    table = build_observations_table(context)
    return Section("observations", "Seen from outside", [TableBlock(table), Paragraph(note, "notes")])


def build_observations_table(context: ReportContext) -> Table:
    observations = context.findings.versus.observations if context.findings.versus else []
    rows = [
        [observation.question, Cell(observation.answer, color="yellow" if observation.is_concern else "")]
        for observation in observations
    ]
    return make_table("observations", "", "", make_text_columns("question", "answer"), rows)


def build_noise_section(context: ReportContext) -> Section | None:
    """Return the noise across seeds and the smallest detectable effects."""
    versus = context.findings.versus
    if versus is None or versus.noise is None:
        return None
    deviation = number_format.format_fixed(versus.noise.standard_deviation, 4)
    text = (
        f"The standard deviation of {versus.metric_name} over {versus.noise.seeds} seeds is {deviation}. The table "
        "lists the smallest change that so many seeds per variant detect with a probability of 80 %, if initial "
        "weights and batches are not paired."
    )
    return Section("noise", "Noise", [Paragraph(text), TableBlock(build_noise_table(context))])


def build_noise_table(context: ReportContext) -> Table:
    """Return the smallest change that each number of seeds can detect."""
    versus = context.findings.versus
    assert versus is not None
    assert versus.noise is not None
    rows = [
        [seeds, Cell(number_format.format_fixed(effect, 4), effect)]
        for seeds, effect in versus.noise.detectable_effects.items()
    ]
    columns = make_numeric_columns(seeds="seeds per variant", effect="detectable change")
    return make_table("noise", "Detectable changes", "", columns, rows)
