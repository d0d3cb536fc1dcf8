"""The input to a report: the findings, and the folder they were computed from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headtohead.attention_analysis.thumbnails import TrainingMaps, read_training_maps
from headtohead.config.experiment import Experiment
from headtohead.config.tables.report_text import ReportText
from headtohead.experiment import findings_view
from headtohead.experiment.schemas import Findings
from headtohead.presentation import number_format


@dataclass(frozen=True)
class ReportContext:
    """The input to the builders of sections and introduction. Any section of the findings may be empty."""

    findings: Findings
    experiment_folder: Path | None = None
    """folder from which attention maps are read, unless `attention_maps` is set, and the code that trials executed"""
    attention_maps: Mapping[str, TrainingMaps] | None = None
    is_full: bool = False
    """whether Markdown and PDF documents include the sections that have a summary"""

    @property
    def metric(self) -> str:
        return findings_view.get_metric(self.findings)

    @property
    def formatted_margin(self) -> str:
        """The equivalence margin as text, such as "±1 %"."""
        return number_format.format_margin(self.metric, findings_view.get_equivalence_margin(self.findings))

    @property
    def experiment(self) -> Experiment | None:
        return self.findings.experiment

    @property
    def user_texts(self) -> Sequence[ReportText]:
        """The user's own text for the report, from the `[[text]]` blocks of the experiment file."""
        return self.experiment.text if self.experiment is not None else ()

    @property
    def is_quick(self) -> bool:
        """Whether the experiment is a quick look, for which no verdict is given."""
        return self.experiment is not None and self.experiment.quick

    @property
    def variant_names(self) -> list[str]:
        return findings_view.list_variant_names(self.findings)

    def load_attention_maps(self) -> Mapping[str, TrainingMaps]:
        """Return the attention maps by variant, or an empty dictionary if there are none."""
        if self.attention_maps is not None:
            return self.attention_maps
        return read_training_maps(self.experiment_folder, self.variant_names) if self.experiment_folder else {}

    def describe_primary_metric(self) -> str:
        """Return the metric and evaluation set of the verdicts, such as "perplexity on test, unseen rows"."""
        if self.findings.versus is not None:
            return self.findings.versus.metric_name
        evaluation_set = findings_view.describe_evaluation_set(self.findings)
        return self.metric + (f" on {evaluation_set}" if evaluation_set else "")
