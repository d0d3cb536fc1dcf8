"""Section on the audits of the models, and the audit tables and counts that the section on the data shares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from headtohead.audit.result import CheckResult
from headtohead.experiment.schemas import Findings
from headtohead.presentation.section import HtmlBlock, Section
from headtohead.presentation.table import Cell, Table, make_table, make_text_columns
from headtohead.report.context import ReportContext

STATUS_LABELS = {True: "passed", False: "failed", None: "does not apply"}
STATUS_LABEL_ORDER = ("failed", "note", "passed", "does not apply")
PLURAL_STATUS_LABELS = {"note": "notes", "does not apply": "do not apply"}
AUDIT_COLUMNS = make_text_columns("audit", "result", "procedure", "observation", "interpretation")


def build_audits_section(context: ReportContext) -> Section | None:
    """Return the section on every variant's model audits."""
    audits = context.findings.audits
    if not any(audits.values()):
        return None
    block = make_audits_block({name: f"{name}: " for name in audits}, audits, build_audits_table(context.findings))
    summary = summarize_passed_audits([audit for variant_audits in audits.values() for audit in variant_audits])
    return Section("audits", "Audits", [block], "Audits", summary=summary)


def group_data_audits(findings: Findings) -> dict[str, list[CheckResult]]:
    """Return the audits of the data, and of the data of each variant that changes them."""
    variant_audits = {f"data of {name}": audits for name, audits in findings.variant_data_audits.items()}
    return {"data": findings.data_audits, **variant_audits}


def summarize_passed_audits(audits: Sequence[CheckResult]) -> str:
    """Return the summary of a section on audits; empty if there are no audits or a blocking one failed."""
    if not audits or any(get_audit_status_label(audit) == "failed" for audit in audits):
        return ""
    return f"{format_audit_counts(audits)}."


def format_audit_counts(audits: Iterable[CheckResult]) -> str:
    """Format the number of audits with each status for the report and the terminal, such as "21 passed, 4 notes"."""
    counts = Counter(map(get_audit_status_label, audits))
    return ", ".join(
        f"{counts[label]} {PLURAL_STATUS_LABELS.get(label, label) if counts[label] > 1 else label}"
        for label in STATUS_LABEL_ORDER
        if counts[label]
    )


def make_audits_block(labels: dict[str, str], audits: Mapping[str, list[CheckResult]], table: Table) -> HtmlBlock:
    """Return a block with full details of blocking failures, the names of notes, and a collapsed table per variant."""
    failed_rows, notes, groups = [], [], []
    for name, variant_audits in audits.items():
        failed_rows += [
            {**asdict(audit), "variant": "" if name == "data" else name}
            for audit in variant_audits
            if get_audit_status_label(audit) == "failed"
        ]
        notes += [audit.name for audit in variant_audits if get_audit_status_label(audit) == "note"]
        if variant_audits:
            variant_table = make_table(
                f"audits-{name}", "Audits", f"Audits: {name}.", AUDIT_COLUMNS, make_audit_table_rows(variant_audits)
            )
            groups.append({"summary": labels[name] + format_audit_counts(variant_audits), "table": variant_table})
    return HtmlBlock("audits", {"failed": failed_rows, "notes": list(dict.fromkeys(notes)), "groups": groups}, [table])


def make_audit_table_rows(audits: Iterable[CheckResult]) -> list[list[Any]]:
    """Return one table row per audit: failed audits first, inapplicable ones last."""
    outcome_order = {False: 0, True: 1, None: 2}
    rows = []
    for audit in sorted(audits, key=lambda audit: (outcome_order[audit.passed], not audit.is_blocking)):
        status = Cell(get_audit_status_label(audit), audit.passed)
        rows.append([audit.name, status, audit.procedure, audit.observation, audit.interpretation])
    return rows


def get_audit_status_label(audit: CheckResult) -> str:
    """Return the status shown for an audit: a failed audit that does not withhold a verdict is a "note"."""
    if audit.passed is False and not audit.is_blocking:
        return "note"
    return STATUS_LABELS[audit.passed]


def build_audits_table(findings: Findings) -> Table:
    """Return the table of all model audits, with failures and notes first."""
    rows = [[name, *row] for name, audits in findings.audits.items() for row in make_audit_table_rows(audits)]
    rows.sort(key=lambda row: row[2].text not in ("failed", "note"))
    return make_table("audits", "Audits of the models", "", make_text_columns("variant") + AUDIT_COLUMNS, rows)


def build_data_audits_table(findings: Findings) -> Table:
    """Return the table of all data audits, including those of variants that change the data."""
    audits = [
        replace(audit, name=audit.name if group == "data" else f"{audit.name} ({group})")
        for group, group_audits in group_data_audits(findings).items()
        for audit in group_audits
    ]
    rows = make_audit_table_rows(audits)
    return make_table("data_audits", "Audits of the data", "Leakage and suspicious rows.", AUDIT_COLUMNS, rows)
