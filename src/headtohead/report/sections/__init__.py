"""The report's sections, one module per family. A builder returns a `Section`, or None if it has no content.

To add a section, write a module with a builder and add the builder to `SECTION_BUILDERS`.
"""

from __future__ import annotations

from collections.abc import Callable

from headtohead.experiment.schemas import Findings
from headtohead.presentation.chart import Chart
from headtohead.presentation.section import Section
from headtohead.presentation.table import Table
from headtohead.report.context import ReportContext
from headtohead.report.sections import (
    attention,
    audits,
    comparisons,
    curves,
    distillation,
    examples,
    pairing,
    replication,
    reproduction,
    scaling,
    scores,
    search,
    verdicts,
    versus,
)
from headtohead.report.sections.user_text import place_texts

SECTION_BUILDERS: tuple[Callable[[ReportContext], Section | None], ...] = (
    distillation.build_headline_section,
    verdicts.build_verdicts_section,
    versus.build_noise_section,
    versus.build_commands_section,
    versus.build_observations_section,
    pairing.build_settings_section,
    audits.build_failures_section,
    distillation.build_distillation_section,
    search.build_search_section,
    comparisons.build_comparisons_section,
    replication.build_claims_section,
    scores.build_scores_section,
    curves.build_curves_section,
    scaling.build_axis_section,
    scaling.build_context_length_section,
    examples.build_confusion_section,
    examples.build_samples_section,
    examples.build_probe_sentences_section,
    attention.build_maps_section,
    attention.build_heads_section,
    pairing.build_cost_section,
    pairing.build_pairing_section,
    audits.build_audits_section,
    audits.build_data_section,
    replication.build_published_section,
    reproduction.build_reproduction_section,
)


def build_sections(context: ReportContext) -> list[Section]:
    """Return the sections that have content, in reading order."""
    sections = [section for build in SECTION_BUILDERS if (section := build(context)) is not None]
    return place_texts(sections, context.texts)


def build_tables(findings: Findings) -> list[Table]:
    """Return every table in the report, in reading order."""
    return [table for section in build_sections(ReportContext(findings)) for table in section.tables]


def build_charts(findings: Findings) -> list[Chart]:
    """Return every chart in the report, in reading order."""
    return [chart for section in build_sections(ReportContext(findings)) for chart in section.charts]
