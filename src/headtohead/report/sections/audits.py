"""Audits of models and data, the corpus, and trials without a result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from headtohead.experiment.findings_view import Findings
from headtohead.presentation import number_format
from headtohead.presentation.section import HtmlBlock, Section, make_table_blocks
from headtohead.presentation.table import Cell, Column, Table, make_table, make_text_cell
from headtohead.replication.tables import build_attribution_table, build_simple_baselines_table
from headtohead.report.context import ReportContext

AUDIT_STATUS_LABELS = {True: "passed", False: "failed", None: "does not apply"}
AUDIT_STATUS_ORDER = ("failed", "note", "passed", "does not apply")
PLURAL_STATUSES = {"note": "notes", "does not apply": "do not apply"}
AUDIT_COLUMNS = (
    Column("audit", "audit"),
    Column("result", "result"),
    Column("procedure", "procedure"),
    Column("observation", "observation"),
    Column("interpretation", "interpretation"),
)
AuditRow = dict[str, Any]


def build_audits_section(context: ReportContext) -> Section | None:
    audits = context.findings.get("audits") or {}
    if not any(audits.values()):
        return None
    block = _make_audits_block({name: f"{name}: " for name in audits}, audits, build_audits_table(context.findings))
    return Section("audits", "Audits: can these numbers be trusted?", [block], "Audits")


def build_data_section(context: ReportContext) -> Section | None:
    findings = context.findings
    audits = findings.get("data_audits") or []
    tables = build_corpus_table(findings), build_attribution_table(findings), build_simple_baselines_table(findings)
    blocks = make_table_blocks(*tables)
    if audits:
        label = {"data": "All audits of the data: "}
        blocks.insert(0, _make_audits_block(label, {"data": audits}, build_data_audits_table(findings)))
    return Section("data", "Data and leakage", blocks, "Data") if blocks else None


def build_failures_section(context: ReportContext) -> Section | None:
    blocks = make_table_blocks(build_failures_table(context.findings))
    return Section("failures", "Trials without a result", blocks) if blocks else None


def _make_audits_block(labels: dict[str, str], audits: dict[str, list[AuditRow]], table: Table) -> HtmlBlock:
    """Return failed audits in full, then one folded table per variant; elsewhere, one table."""
    failed, groups = [], []
    for name, rows in audits.items():
        failed += [{**row, "variant": "" if name == "data" else name} for row in rows if row["passed"] is False]
        counts = Counter(map(get_audit_status, rows))
        summary = ", ".join(
            f"{counts[status]} {PLURAL_STATUSES.get(status, status) if counts[status] > 1 else status}"
            for status in AUDIT_STATUS_ORDER
            if counts[status]
        )
        if rows:
            group = make_table(f"audits-{name}", "Audits", f"Audits: {name}.", AUDIT_COLUMNS, make_audit_rows(rows))
            groups.append({"summary": labels[name] + summary, "table": group})
    failed.sort(key=lambda row: not row.get("is_blocking", True))
    return HtmlBlock("audits", {"failed": failed, "groups": groups}, [table])


def make_audit_rows(audits: Iterable[AuditRow]) -> list[list[Cell]]:
    """Return failed audits first and those that do not apply last."""
    order = {False: 0, True: 1, None: 2}
    rows = []
    for audit in sorted(audits, key=lambda audit: (order[audit["passed"]], not audit.get("is_blocking", True))):
        details = [make_text_cell(audit.get(key) or "") for key in ("procedure", "observation", "interpretation")]
        rows.append([make_text_cell(audit["name"]), Cell(get_audit_status(audit), audit["passed"]), *details])
    return rows


def get_audit_status(audit: AuditRow) -> str:
    """Return passed, failed, does not apply, or note: a failed audit that does not withhold a verdict."""
    if audit["passed"] is False and not audit.get("is_blocking", True):
        return "note"
    return AUDIT_STATUS_LABELS[audit["passed"]]


def build_audits_table(findings: Findings) -> Table:
    rows = [
        [make_text_cell(name), *row]
        for name, audits in (findings.get("audits") or {}).items()
        for row in make_audit_rows(audits)
    ]
    rows.sort(key=lambda row: row[2].text not in ("failed", "note"))
    return make_table("audits", "Audits of the models", "", (Column("variant", "variant"), *AUDIT_COLUMNS), rows)


def build_data_audits_table(findings: Findings) -> Table:
    rows = make_audit_rows(findings.get("data_audits") or [])
    return make_table("data_audits", "Audits of the data", "Leakage and suspicious rows.", AUDIT_COLUMNS, rows)


def build_corpus_table(findings: Findings) -> Table:
    corpus = findings.get("corpus") or {}
    columns = [
        Column("split", "split"),
        Column("rows", "rows", True),
        Column("tokens", "tokens", True),
        Column("unknown", "unknown tokens", True),
    ]
    rows = []
    for split, sizes in (corpus.get("splits") or {}).items():
        counts = [Cell(number_format.format_count(sizes.get(key)), sizes.get(key)) for key in ("rows", "tokens")]
        unknown = Cell(number_format.format_percentage(sizes.get("unknown")), sizes.get("unknown"))
        rows.append([make_text_cell(split), *counts, unknown])
    caption = f"Source: {str(corpus.get('origin') or 'unknown').rstrip('.')}."
    return make_table("corpus", "Corpus", caption, columns, rows)


def build_failures_table(findings: Findings) -> Table:
    columns = [Column("variant", "variant"), Column("seed", "seed", True), Column("message", "error")]
    rows = [
        [make_text_cell(failure[key]) for key in ("variant", "seed", "message")]
        for failure in findings.get("failures") or []
    ]
    return make_table("failures", "Trials without a result", "Excluded from all statistics.", columns, rows)
