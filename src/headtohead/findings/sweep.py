"""Compute the findings of a sweep: the verdicts of all cells, and a summary over the cells for each variant.

Effects are averaged on the scale of the analysis: log perplexity, or accuracy.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import scipy

from headtohead.config.experiment import BASELINE, Experiment
from headtohead.config.tables.sweep import CORPUS_AXIS, SIZE_AXIS
from headtohead.errors import RunFolderError
from headtohead.experiment.run_folder import ExperimentRuns, open_experiment_runs
from headtohead.experiment.schemas import (
    CorpusEffect,
    Findings,
    SweepAxisFindings,
    SweepCellResult,
    SweepFindings,
    SweepSummary,
    Trend,
    TrendLevel,
)
from headtohead.experiment.sweep_cells import get_cell_folder, order_cells_by_coverage
from headtohead.findings.contrasts import Contrast, PairedDifferences, load_paired_differences
from headtohead.findings.trends import AxisLevel, TrendEstimate, classify_trend_direction
from headtohead.json_files import compute_json_checksum
from headtohead.verdict.decision_rule import NOT_COMPARABLE
from headtohead.verdict.metric import Metric, get_metric
from headtohead.verdict.prediction_interval import MIN_CORPORA, compute_prediction_interval
from headtohead.verdict.record import Verdict

CONFIDENCE = 0.95
TREND_UNITS = {
    SIZE_AXIS: "parameters",
    "training.budget": "steps",
    "model.width": "width",
    "model.layers": "layers",
    "data.train_rows": "training rows",
    "training.batch_size": "rows per batch",
}
"""axes along which a trend is computed, with their units"""
Coordinates = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class FinishedCell:
    """A cell of a sweep that has findings, with its runs."""

    result: SweepCellResult
    runs: ExperimentRuns
    findings: Findings

    @property
    def corpus(self) -> str:
        """The name of the corpus, or an empty string if the sweep has no corpora."""
        return self.result.coordinates.get(CORPUS_AXIS, "")

    def get_verdict(self, variant: str) -> Verdict | None:
        """Return the verdict on a variant, or None if it is missing or "not comparable"."""
        verdicts = [verdict for verdict in self.result.verdicts if verdict.variant == variant]
        return verdicts[0] if verdicts and verdicts[0].outcome != NOT_COMPARABLE else None

    def get_other_coordinates(self, axis: str) -> Coordinates:
        """Return the values of the cell on all axes except `axis`."""
        return tuple(item for item in self.result.coordinates.items() if item[0] != axis)


def compute_sweep_findings(runs: ExperimentRuns, compute_cell: Callable[[ExperimentRuns], Findings]) -> Findings:
    """Return the findings of a sweep. `compute_cell` returns the findings of one cell."""
    experiment = runs.experiment
    assert experiment.sweep is not None
    results, finished_cells = [], []
    for cell in order_cells_by_coverage(experiment.sweep.list_cells()):
        result = SweepCellResult(name=cell.name, coordinates=dict(cell.coordinates))
        cell_folder = get_cell_folder(runs.folder, cell.name)
        if not (cell_folder / "experiment.json").is_file():
            results.append(result.model_copy(update={"message": "not started"}))
            continue
        try:
            cell_runs = open_experiment_runs(cell_folder)
            findings = compute_cell(cell_runs)
        except RunFolderError as error:
            results.append(result.model_copy(update={"message": str(error)}))
            continue
        results.append(_add_cell_findings(result, cell_runs, findings))
        finished_cells.append(FinishedCell(results[-1], cell_runs, findings))
    return Findings(
        experiment=experiment,
        versions=runs.metadata.versions,
        command=runs.metadata.command,
        metric=experiment.primary.metric,
        split=experiment.primary.split,
        sweep=SweepFindings(
            axes=[SweepAxisFindings(name=axis.name, values=list(axis.values)) for axis in experiment.sweep.list_axes()],
            cells=results,
            summaries=[
                _SweepSummarizer(experiment, name, finished_cells).build_summary() for name in experiment.variants
            ],
        ),
    )


def _add_cell_findings(result: SweepCellResult, runs: ExperimentRuns, findings: Findings) -> SweepCellResult:
    """Return a cell with its verdicts, its warnings and the size of its baseline."""
    baseline = next(iter(runs.finished(BASELINE).values()))
    return result.model_copy(
        update={
            "verdicts": findings.verdicts,
            "steps": baseline.start.steps,
            "parameters": baseline.start.parameters,
            "warnings": list(dict.fromkeys(warning.kind for warning in findings.warnings)),
            "digest": compute_json_checksum(findings.to_json()),
        }
    )


@dataclass(frozen=True)
class _SweepSummarizer:
    """Summarizes one variant over the cells that have a comparable verdict on it."""

    experiment: Experiment
    variant: str
    finished_cells: Sequence[FinishedCell]

    @cached_property
    def metric(self) -> Metric:
        return get_metric(self.experiment.primary.metric)

    @cached_property
    def comparable_cells(self) -> list[FinishedCell]:
        return [cell for cell in self.finished_cells if cell.get_verdict(self.variant) is not None]

    @cached_property
    def differences(self) -> dict[str, PairedDifferences]:
        """The paired differences of each cell of the sweep, by cell name; cells without a common seed are omitted."""
        loaded_differences = {
            cell.result.name: load_paired_differences(cell.runs, cell.findings.failures, self.variant)
            for cell in self.comparable_cells
        }
        return {name: differences for name, differences in loaded_differences.items() if differences is not None}

    def build_summary(self) -> SweepSummary:
        """Return the variant's outcomes, mean effect, prediction interval for a new corpus, and trends."""
        verdicts = [
            verdict for cell in self.comparable_cells if (verdict := cell.get_verdict(self.variant)) is not None
        ]
        outcomes = [verdict.outcome for verdict in verdicts]
        effects_by_corpus = self._average_effects_by_corpus()
        effects = [effect for effect, _ in effects_by_corpus.values()]
        interval = compute_prediction_interval(effects)
        return SweepSummary(
            variant=self.variant,
            cells=len(verdicts),
            better=sum(verdict.is_better for verdict in verdicts),
            outcomes={outcome: outcomes.count(outcome) for outcome in dict.fromkeys(outcomes)},
            effect=self._to_display(statistics.fmean(effects)) if effects else math.nan,
            corpora=[
                CorpusEffect(corpus=corpus, effect=self._to_display(effect), cells=num_cells)
                for corpus, (effect, num_cells) in effects_by_corpus.items()
            ],
            prediction=None if interval is None else self._to_display_interval(interval),
            trends=[trend for axis in TREND_UNITS for trend in self._build_trends(axis)],
        )

    def _to_display(self, difference: float) -> float:
        """Return a difference of log perplexities as a relative change; a difference of accuracies is unchanged."""
        return self.metric.to_display_effect(difference)

    def _to_display_interval(self, interval: tuple[float, float]) -> tuple[float, float]:
        return self._to_display(interval[0]), self._to_display(interval[1])

    def _average_effects_by_corpus(self) -> dict[str, tuple[float, int]]:
        """Return {corpus: (mean effect, number of cells)} of a sweep, for the coordinates that all corpora have."""
        effects: dict[str, dict[Coordinates, float]] = {}
        for cell in self.comparable_cells:
            if (differences := self.differences.get(cell.result.name)) is not None:
                effects.setdefault(cell.corpus, {})[cell.get_other_coordinates(CORPUS_AXIS)] = differences.mean
        if not effects:
            return {}
        shared_coordinates = set.intersection(*(set(effect_by_cell) for effect_by_cell in effects.values()))
        return {
            corpus: (
                statistics.fmean(effect for key, effect in effect_by_cell.items() if key in shared_coordinates),
                len(shared_coordinates),
            )
            for corpus, effect_by_cell in effects.items()
            if shared_coordinates
        }

    def _build_trends(self, axis: str) -> list[Trend]:
        """Return the trend along an axis of the sweep for each corpus and, with at least three corpora, their mean."""
        cells_by_corpus: dict[str, list[FinishedCell]] = {}
        for cell in self.comparable_cells:
            if axis in cell.result.coordinates and cell.result.name in self.differences:
                cells_by_corpus.setdefault(cell.corpus, []).append(cell)
        trends, slopes = [], []
        for corpus, cells in cells_by_corpus.items():
            estimate = TrendEstimate(_group_sweep_cells_by_level(axis, cells), self.differences)
            if len(estimate.levels) > 1 and (slope := estimate.estimate_slope()) is not None:
                slopes.append(slope.value)
                trends.append(self._build_trend(axis, corpus, estimate, slope))
        if len(slopes) >= MIN_CORPORA:
            trends.append(self._average_trend(axis, trends, slopes))
        return trends

    def _build_trend(self, axis: str, corpus: str, estimate: TrendEstimate, slope: Contrast) -> Trend:
        """Return the effect at each level, the change per doubling, and the x where the sign becomes unclear."""
        effects = [
            estimate.estimate_level_effect(index) or Contrast(math.nan, math.nan)
            for index in range(len(estimate.levels))
        ]
        unclear_from, is_extrapolated = estimate.find_unclear_sign()
        num_doublings = estimate.log2_positions[-1] - estimate.log2_positions[0]
        margin = min(map(abs, self.metric.compute_equivalence_bounds(self.experiment.equivalence_margin)))
        return Trend(
            axis=axis,
            unit=TREND_UNITS[axis],
            corpus=corpus,
            levels=[
                TrendLevel(
                    label=level.label,
                    x=level.x,
                    effect=self._to_display(effect.value),
                    interval=self._to_display_interval(effect.interval),
                )
                for level, effect in zip(estimate.levels, effects, strict=True)
            ],
            per_doubling=self._to_display(slope.value),
            interval=self._to_display_interval(slope.interval),
            direction=classify_trend_direction(effects[0].value, slope, num_doublings, margin),
            unclear_from=unclear_from,
            is_extrapolated=is_extrapolated,
        )

    def _average_trend(self, axis: str, trends: Sequence[Trend], slopes: Sequence[float]) -> Trend:
        """Return the mean slope over corpora, with the t interval over corpora."""
        standard_error = statistics.stdev(slopes) / math.sqrt(len(slopes))
        critical_value = float(scipy.special.stdtrit(len(slopes) - 1, (1 + CONFIDENCE) / 2))
        mean_slope = Contrast(statistics.fmean(slopes), critical_value * standard_error)
        first_effect = statistics.fmean(trend.levels[0].effect for trend in trends)
        return Trend(
            axis=axis,
            unit=TREND_UNITS[axis],
            corpus="",
            per_doubling=self._to_display(mean_slope.value),
            interval=self._to_display_interval(mean_slope.interval),
            direction=classify_trend_direction(first_effect, mean_slope, math.inf, 0.0),
        )


def _group_sweep_cells_by_level(axis: str, cells: Sequence[FinishedCell]) -> list[AxisLevel]:
    """Return the levels of a sweep axis sorted by x, with the cells whose other coordinates occur at every level."""
    cells_by_label: Mapping[str, list[FinishedCell]] = {
        label: [cell for cell in cells if cell.result.coordinates[axis] == label]
        for label in dict.fromkeys(cell.result.coordinates[axis] for cell in cells)
    }
    shared_coordinates = set.intersection(
        *({cell.get_other_coordinates(axis) for cell in level_cells} for level_cells in cells_by_label.values())
    )
    levels = [
        AxisLevel(
            label,
            _get_sweep_axis_value(axis, label, level_cells[0]),
            tuple(cell.result.name for cell in level_cells if cell.get_other_coordinates(axis) in shared_coordinates),
        )
        for label, level_cells in cells_by_label.items()
    ]
    return sorted((level for level in levels if level.x > 0 and level.cells), key=lambda level: level.x)


def _get_sweep_axis_value(axis: str, label: str, cell: FinishedCell) -> float:
    """Return the x of a level of a sweep axis: parameters, steps, or the value of the setting; 0 if it has none."""
    counts = {SIZE_AXIS: cell.result.parameters, "training.budget": cell.result.steps}
    if axis in counts:
        return float(counts[axis] or 0)
    try:
        return float(label)
    except ValueError:
        return 0.0
