"""Section on the data: audits of leakage, the corpus, baselines counted on it, and whose lines its texts contain."""

from __future__ import annotations

from functools import partial

from headtohead.experiment.schemas import Findings
from headtohead.presentation import number_format
from headtohead.presentation.section import Section, make_table_blocks
from headtohead.presentation.table import Cell, Table, make_numeric_columns, make_table, make_text_columns
from headtohead.report.context import ReportContext
from headtohead.report.sections.audits import (
    build_data_audits_table,
    group_data_audits,
    make_audits_block,
    summarize_passed_audits,
)


def build_data_section(context: ReportContext) -> Section | None:
    """Return the section on the corpus: audits of leakage, sizes, and the scores of simple baselines."""
    findings = context.findings
    groups = group_data_audits(findings)
    audits = [audit for group in groups.values() for audit in group]
    tables = build_corpus_table(findings), build_lines_by_label_table(findings), build_corpus_baselines_table(findings)
    blocks = make_table_blocks(*tables)
    if audits:
        labels = {name: f"Audits of the {name}: " for name in groups} | {"data": "All audits of the data: "}
        blocks.insert(0, make_audits_block(labels, groups, build_data_audits_table(findings)))
    section = Section("data", "Data and leakage", blocks, "Data", summary=summarize_passed_audits(audits))
    return section if blocks else None


def build_corpus_table(findings: Findings) -> Table:
    """Return the number of rows, tokens and out-of-vocabulary tokens of every split of the corpus."""
    corpus = findings.corpus
    columns = make_text_columns("split") + make_numeric_columns("rows", "tokens", format=number_format.format_count)
    columns += make_numeric_columns(unknown="unknown tokens", format=number_format.format_percentage)
    splits = corpus.splits if corpus else {}
    rows = [[name, split.rows, split.tokens, split.unknown] for name, split in splits.items()]
    caption = f"Source: {(corpus.origin if corpus else 'unknown').rstrip('.')}."
    return make_table("corpus", "Corpus", caption, columns, rows)


def build_corpus_baselines_table(findings: Findings) -> Table:
    """Return the accuracy of baselines counted on the training corpus, which a trained classifier should exceed."""
    accuracies = findings.corpus.count_baselines if findings.corpus else {}
    splits = list(dict.fromkeys(name for accuracy_by_split in accuracies.values() for name in accuracy_by_split))
    columns = make_text_columns(method="baseline")
    columns += make_numeric_columns(*splits, format=partial(number_format.format_score, "accuracy"))
    rows = [
        [name, *(accuracy_by_split.get(split) for split in splits)] for name, accuracy_by_split in accuracies.items()
    ]
    caption = (
        "Accuracy of looking a text up in the training data (or else the most common class), and of naive Bayes over "
        "the same tokens (words for pretrained models). Its smoothing is chosen by leave-one-out on the training rows."
    )
    return make_table("simple", "Baselines without training", caption, columns, rows)


def build_lines_by_label_table(findings: Findings) -> Table:
    """Return how many lines of each text of the corpus occur under each label of a labeled file.

    Empty if no line could be traced to a label.
    """
    counts = findings.corpus.lines_by_label if findings.corpus else {}
    traced_counts = [
        count for count_by_label in counts.values() for label, count in count_by_label.items() if label != "not traced"
    ]
    counts = counts if any(traced_counts) else {}
    labels = list(dict.fromkeys(label for count_by_label in counts.values() for label in count_by_label))
    columns = make_text_columns("text") + make_numeric_columns(*labels)
    rows = []
    for name, count_by_label in counts.items():
        total = sum(count_by_label.values()) or 1
        cells = []
        for label in labels:
            count = count_by_label.get(label, 0)
            cells.append(
                Cell(f"{count:,} ({number_format.format_percentage(count / total)})", count_by_label.get(label))
            )
        rows.append([name, *cells])
    caption = (
        "Lines of each text that occur under a label in the labeled training file of the same source. Text by a "
        "speaker who is rare in the training data is harder to predict."
    )
    return make_table("whose", "Lines by label", caption, columns, rows)
