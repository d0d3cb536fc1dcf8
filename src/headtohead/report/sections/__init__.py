"""Present findings as the sections of a report, one module per topic. A builder returns a `Section`, or None if empty.

A section computes no results: `headtohead.findings` and the feature packages do. Tables of a feature that has its own
package, such as search or distillation, are built there; all others are built next to their section. Charts that
several sections may use are in `headtohead.report.charts`.

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
    changed_settings,
    comparisons,
    corpus,
    curves,
    distillation,
    failures,
    length_generalization,
    pairing,
    probes,
    replication,
    reproduction,
    scores,
    scores_by_setting,
    search,
    sweep,
    training_scripts,
    tuning,
    verdicts,
)
from headtohead.report.sections.user_text import place_user_texts

SECTION_BUILDERS: tuple[Callable[[ReportContext], Section | None], ...] = (
    distillation.build_distillation_verdicts_section,
    sweep.build_sweep_section,
    verdicts.build_verdicts_section,
    training_scripts.build_script_noise_section,
    training_scripts.build_script_commands_section,
    training_scripts.build_script_fairness_section,
    changed_settings.build_changed_settings_section,
    failures.build_failures_section,
    distillation.build_distillation_section,
    search.build_search_section,
    tuning.build_tuning_section,
    comparisons.build_comparisons_section,
    replication.build_claims_section,
    scores.build_scores_section,
    curves.build_curves_section,
    scores.build_seeds_section,
    scores_by_setting.build_axis_section,
    length_generalization.build_context_length_section,
    scores.build_confusion_section,
    probes.build_samples_section,
    probes.build_probe_sentences_section,
    attention.build_maps_section,
    attention.build_heads_section,
    pairing.build_cost_section,
    pairing.build_pairing_section,
    audits.build_audits_section,
    corpus.build_data_section,
    replication.build_published_section,
    reproduction.build_reproduction_section,
)


def build_sections(context: ReportContext) -> list[Section]:
    """Return the sections that have content, in reading order."""
    sections = [section for build in SECTION_BUILDERS if (section := build(context)) is not None]
    return place_user_texts(sections, context.user_texts)


def build_tables(findings: Findings) -> list[Table]:
    """Return every table in the report, in reading order."""
    return [table for section in build_sections(ReportContext(findings)) for table in section.tables]


def build_charts(findings: Findings) -> list[Chart]:
    """Return every chart in the report, in reading order."""
    return [chart for section in build_sections(ReportContext(findings)) for chart in section.charts]
