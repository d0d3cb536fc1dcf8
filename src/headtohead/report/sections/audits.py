"""Sections on model and data audits, on the corpus with simple baselines, and on trials without a result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from headtohead.audit.result import CheckResult
from headtohead.experiment.schemas import Findings
from headtohead.presentation import number_format
from headtohead.presentation.section import HtmlBlock, Section, make_table_blocks
from headtohead.presentation.table import Cell, Table, make_numeric_columns, make_table, make_text_columns
from headtohead.report.context import ReportContext

AUDIT_STATUS_LABELS = {True: "passed", False: "failed", None: "does not apply"}
AUDIT_STATUS_ORDER = ("failed", "note", "passed", "does not apply")
PLURAL_STATUSES = {"note": "notes", "does not apply": "do not apply"}
AUDIT_COLUMNS = make_text_columns("audit", "result", "procedure", "observation", "interpretation")


def build_audits_section(context: ReportContext) -> Section | None:
    """Return the section on every variant's model audits."""
    audits = context.findings.audits
    if not any(audits.values()):
        return None
    block = _make_audits_block({name: f"{name}: " for name in audits}, audits, build_audits_table(context.findings))
    summary = _summarize_passed([audit for by_variant in audits.values() for audit in by_variant])
    return Section("audits", "Audits", [block], "Audits", summary=summary)


def build_data_section(context: ReportContext) -> Section | None:
    """Return the section on the corpus: its audits and the scores of simple baselines."""
    findings = context.findings
    audits = findings.data_audits
    tables = build_corpus_table(findings), build_attribution_table(findings), build_simple_baselines_table(findings)
    blocks = make_table_blocks(*tables)
    if audits:
        label = {"data": "All audits of the data: "}
        blocks.insert(0, _make_audits_block(label, {"data": audits}, build_data_audits_table(findings)))
    section = Section("data", "Data and leakage", blocks, "Data", summary=_summarize_passed(audits))
    return section if blocks else None


def _summarize_passed(audits: Sequence[CheckResult]) -> str:
    """Return the audit counts by status, or an empty string if there are no audits or a blocking one failed."""
    if not audits or any(get_audit_status(audit) == "failed" for audit in audits):
        return ""
    return f"{count_statuses(audits)}."


def count_statuses(audits: Iterable[CheckResult]) -> str:
    """Return the number of audits with each status, such as "21 passed, 4 notes"."""
    counts = Counter(map(get_audit_status, audits))
    return ", ".join(
        f"{counts[status]} {PLURAL_STATUSES.get(status, status) if counts[status] > 1 else status}"
        for status in AUDIT_STATUS_ORDER
        if counts[status]
    )


def build_failures_section(context: ReportContext) -> Section | None:
    blocks = make_table_blocks(build_failures_table(context.findings))
    return Section("failures", "Trials without a result", blocks) if blocks else None


def _make_audits_block(labels: dict[str, str], audits: Mapping[str, list[CheckResult]], table: Table) -> HtmlBlock:
    """Return a block with full details of blocking failures, the names of notes, and a collapsed table per variant."""
    failed, notes, groups = [], [], []
    for name, variant_audits in audits.items():
        failed += [
            {**asdict(audit), "variant": "" if name == "data" else name}
            for audit in variant_audits
            if get_audit_status(audit) == "failed"
        ]
        notes += [audit.name for audit in variant_audits if get_audit_status(audit) == "note"]
        if variant_audits:
            group = make_table(
                f"audits-{name}", "Audits", f"Audits: {name}.", AUDIT_COLUMNS, make_audit_rows(variant_audits)
            )
            groups.append({"summary": labels[name] + count_statuses(variant_audits), "table": group})
    return HtmlBlock("audits", {"failed": failed, "notes": list(dict.fromkeys(notes)), "groups": groups}, [table])


def make_audit_rows(audits: Iterable[CheckResult]) -> list[list[Any]]:
    """Return one table row per audit: failed audits first, inapplicable ones last."""
    order = {False: 0, True: 1, None: 2}
    rows = []
    for audit in sorted(audits, key=lambda audit: (order[audit.passed], not audit.is_blocking)):
        status = Cell(get_audit_status(audit), audit.passed)
        rows.append([audit.name, status, audit.procedure, audit.observation, audit.interpretation])
    return rows


def get_audit_status(audit: CheckResult) -> str:
    """Return "passed", "failed", "does not apply", or "note" for a failed audit that does not withhold a verdict."""
    if audit.passed is False and not audit.is_blocking:
        return "note"
    return AUDIT_STATUS_LABELS[audit.passed]


def build_audits_table(findings: Findings) -> Table:
    rows = [[name, *row] for name, audits in findings.audits.items() for row in make_audit_rows(audits)]
    rows.sort(key=lambda row: row[2].text not in ("failed", "note"))
    return make_table("audits", "Audits of the models", "", make_text_columns("variant") + AUDIT_COLUMNS, rows)


def build_data_audits_table(findings: Findings) -> Table:
    rows = make_audit_rows(findings.data_audits)
    return make_table("data_audits", "Audits of the data", "Leakage and suspicious rows.", AUDIT_COLUMNS, rows)


def build_simple_baselines_table(findings: Findings) -> Table:
    """Return the accuracy of count-based baselines that a trained classifier should exceed."""
    accuracies = findings.corpus.count_baselines if findings.corpus else {}
    splits = list(dict.fromkeys(name for by_split in accuracies.values() for name in by_split))
    columns = make_text_columns(method="baseline")
    columns += make_numeric_columns(*splits, format=partial(number_format.format_score, "accuracy"))
    rows = [[name, *(by_split.get(split) for split in splits)] for name, by_split in accuracies.items()]
    caption = (
        "Accuracy of looking a text up in the training data (or else the most common class), and of naive Bayes over "
        "the same tokens (words for pretrained models). Its smoothing is chosen by leave-one-out on the training rows."
    )
    return make_table("simple", "Baselines without training", caption, columns, rows)


def build_attribution_table(findings: Findings) -> Table:
    """Return the number of lines in each text by label, for lines that also occur in a labeled file."""
    counts = findings.corpus.lines_by_label if findings.corpus else {}
    if not any(count for by_label in counts.values() for label, count in by_label.items() if label != "not traced"):
        counts = {}
    labels = list(dict.fromkeys(label for by_label in counts.values() for label in by_label))
    columns = make_text_columns("text") + make_numeric_columns(*labels)
    rows = []
    for name, by_label in counts.items():
        total = sum(by_label.values()) or 1
        cells = []
        for label in labels:
            count = by_label.get(label, 0)
            cells.append(Cell(f"{count:,} ({number_format.format_percentage(count / total)})", by_label.get(label)))
        rows.append([name, *cells])
    caption = (
        "Lines of each text that occur under a label in the labeled training file of the same source. Text by a "
        "speaker who is rare in the training data is harder to predict."
    )
    return make_table("whose", "Lines by label", caption, columns, rows)


def build_corpus_table(findings: Findings) -> Table:
    """Return every split's number of rows, tokens and out-of-vocabulary tokens."""
    corpus = findings.corpus
    columns = make_text_columns("split") + make_numeric_columns("rows", "tokens", format=number_format.format_count)
    columns += make_numeric_columns(unknown="unknown tokens", format=number_format.format_percentage)
    rows = [[name, row.rows, row.tokens, row.unknown] for name, row in (corpus.splits if corpus else {}).items()]
    caption = f"Source: {(corpus.origin if corpus else 'unknown').rstrip('.')}."
    return make_table("corpus", "Corpus", caption, columns, rows)


def build_failures_table(findings: Findings) -> Table:
    columns = make_text_columns("variant") + make_numeric_columns("seed") + make_text_columns(message="error")
    rows = [(failure.variant, failure.seed, failure.message) for failure in findings.failures]
    return make_table("failures", "Trials without a result", "Excluded from all statistics.", columns, rows)
