"""Section on the settings that each variant changes."""

from __future__ import annotations

from headtohead.experiment import findings_view
from headtohead.experiment.schemas import Findings
from headtohead.presentation import number_format
from headtohead.presentation.section import Paragraph, Section, make_table_blocks
from headtohead.presentation.table import Table, make_table, make_text_columns
from headtohead.report.context import ReportContext


def build_changed_settings_section(context: ReportContext) -> Section | None:
    """Return the settings that each variant changes, with a warning if it changes more than one."""
    blocks = make_table_blocks(build_changed_settings_table(context.findings))
    warnings = [
        Paragraph("the effect cannot be attributed to one of them.", "warning", f"{name} changes several settings:")
        for name, pair in context.findings.pairing.items()
        if pair.changes_multiple_settings
    ]
    return Section("settings", "Changed settings", [*warnings, *blocks], "Settings") if blocks else None


def build_changed_settings_table(findings: Findings) -> Table:
    """Return one row per changed setting: its value in the baseline and in the variant."""
    columns = make_text_columns("variant", "setting", "baseline", changed="variant", flag="flag")
    rows = []
    for name, pair in findings.pairing.items():
        flag = "changes several settings" if pair.changes_multiple_settings else ""
        for setting, value in pair.settings.items():
            baseline_value = findings_view.get_baseline_setting(findings.experiment, setting)
            values = (number_format.format_setting(baseline_value), number_format.format_setting(value))
            rows.append([name, setting, *values, flag])
    if not any(row[-1] for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return make_table("settings", "Changed settings", "All other settings are equal.", columns, rows)
