"""Head metrics for trained models: measured at the end of a trial and aggregated across seeds for the findings.

Only transformers built from parts are measured. Reading the metrics does not import torch.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headtohead.errors import ModelError
from headtohead.experiment.run_folder import FinishedRuns
from headtohead.experiment.schemas import (
    AttentionFile,
    AttentionFindings,
    HeadMeasures,
    HeadSummary,
    SeedEstimate,
    write_record,
)
from headtohead.experiment.seed_average import compute_average_interval
from headtohead.verdict.statistics import compute_mean_interval

if TYPE_CHECKING:
    from headtohead.data.examples import EvaluationExamples
    from headtohead.data.tokenizers import TokenizerProtocol
    from headtohead.nn.transformer import Transformer
    from headtohead.training.objectives import Objective

FILE_NAME = "attention.json"
MEASURE_NAMES = ("entropy", "distance", "first", "itself", "previous", "padding", "induction", "control", "rise")
MAX_ROWS, MIN_ROWS, MAX_BATCH_SIZE = 48, 8, 16
MAX_BATCH_WEIGHTS = 2**26
TARGET_ABLATION_COST, MAX_ABLATION_COST = 2e10, 4e11
"""parameters x tokens x passes: target cost of ablating every head, and the limit above which it is skipped"""


def write_head_measures(
    folder: Path,
    model: Transformer,
    examples: EvaluationExamples,
    objective: Objective,
    tokenizer: TokenizerProtocol,
    split: str,
) -> None:
    """Measure every head on rows from a held-out split and write attention.json. Custom attention without maps is
    skipped.
    """
    try:
        rows, heads = compute_head_measures(model, examples, objective, tokenizer)
    except ModelError:
        return
    write_record(folder / FILE_NAME, AttentionFile(split=split, rows=rows, heads=heads))


def compute_head_measures(
    model: Transformer, examples: EvaluationExamples, objective: Objective, tokenizer: TokenizerProtocol
) -> tuple[int, list[HeadMeasures]]:
    """Return the number of measured rows and each head's metrics."""
    from headtohead.attention_analysis import head_metrics

    model.eval()
    num_rows = min(MAX_ROWS, max(MIN_ROWS, int(TARGET_ABLATION_COST / _estimate_row_cost(model))))
    batch_size = _choose_batch_size(model)
    batches = list(islice(examples.sample(num_rows).batches(batch_size), -(-num_rows // batch_size)))
    heads = head_metrics.measure_heads(model, batches)
    if model.sizes.is_causal:
        heads = head_metrics.add_induction_scores(heads, model, model.context, tokenizer)
    if num_rows * _estimate_row_cost(model) <= MAX_ABLATION_COST and _can_ablate_heads(model):
        heads = _add_loss_increases(model, batches, objective, heads)
    return sum(len(batch.input_ids) for batch in batches), heads


def _estimate_row_cost(model: Transformer) -> float:
    passes = 1 + model.sizes.layers * model.sizes.heads
    return float(sum(p.numel() for p in model.parameters()) * model.context * passes)


def _choose_batch_size(model: Transformer) -> int:
    """Return a batch size whose attention maps fit into memory."""
    weights = model.sizes.layers * model.sizes.heads * model.context**2
    return min(MAX_BATCH_SIZE, max(1, MAX_BATCH_WEIGHTS // weights))


def _can_ablate_heads(model: Transformer) -> bool:
    """Return whether every layer has exactly one merge, whose input contains the separate heads."""
    from headtohead.nn.parts.merge import Merge

    return all(sum(isinstance(m, Merge) for m in layer.modules()) == 1 for layer in model.layers)


def _add_loss_increases(
    model: Transformer, batches: Sequence[Any], objective: Objective, heads: Sequence[HeadMeasures]
) -> list[HeadMeasures]:
    """Return the metrics extended by the loss increase when each head is ablated, with its t interval across rows."""
    import torch

    from headtohead.attention_analysis import head_metrics
    from headtohead.training.objectives import evaluate

    device = torch.device("cpu")
    baseline = evaluate(model, objective, batches, device)
    losses = head_metrics.compute_ablated_losses(
        model, heads, lambda: evaluate(model, objective, batches, device).losses
    )
    extended_heads = []
    for head, ablated in zip(heads, losses, strict=True):
        contributions = linearize_ratio(ablated - baseline.losses, baseline.counts).tolist()
        mean = head_metrics.to_finite_or_none(statistics.fmean(contributions))
        interval = None if mean is None else compute_mean_interval(contributions)
        measures = {
            "rise": mean,
            "rise_interval": interval and tuple(interval),
            "idle": head_metrics.is_idle_head(interval),
        }
        extended_heads.append(head.model_copy(update=measures))
    return extended_heads


def linearize_ratio(
    totals: np.ndarray[Any, np.dtype[np.float64]], counts: np.ndarray[Any, np.dtype[np.float64]]
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return per-row contributions to sum(totals) / sum(counts); their mean is the ratio and their spread its error."""
    ratio = totals.sum() / counts.sum()
    return np.asarray(ratio + (totals - ratio * counts) / counts.mean())


def summarize_over_seeds(runs_by_variant: FinishedRuns) -> AttentionFindings | None:
    """Return every metric's mean across seeds with its t interval, per variant and head; None if there is no data."""
    variants: dict[str, list[HeadSummary]] = {}
    first: AttentionFile | None = None
    for name, runs in runs_by_variant.items():
        if files := [run.attention for run in runs.values() if run.attention is not None]:
            first = first or files[0]
            variants[name] = _aggregate_seeds([file.heads for file in files])
    return AttentionFindings(split=first.split, rows=first.rows, variants=variants) if first else None


def _aggregate_seeds(heads_by_seed: Sequence[Sequence[HeadMeasures]]) -> list[HeadSummary]:
    """Aggregate each head's metrics across the trials for all seeds."""
    heads: dict[tuple[int, int], list[HeadMeasures]] = {}
    for rows in heads_by_seed:
        for row in rows:
            heads.setdefault((row.layer, row.head), []).append(row)
    return [
        HeadSummary(
            layer=layer,
            head=head,
            seeds=len(rows),
            measures={name: _summarize_values([getattr(row, name) for row in rows]) for name in MEASURE_NAMES},
            copies=_count_true([row.copies for row in rows]),
            idle=_count_true([row.idle for row in rows]),
        )
        for (layer, head), rows in heads.items()
    ]


def _summarize_values(values: Sequence[float | None]) -> SeedEstimate | None:
    """Return a head metric's mean across seeds and its confidence interval, or None if no seed has the metric."""
    measured_values = [value for value in values if value is not None]
    if not measured_values:
        return None
    return SeedEstimate(
        mean=statistics.fmean(measured_values), interval=compute_average_interval("loss", measured_values)
    )


def _count_true(flags: Sequence[bool | None]) -> int | None:
    """Return the number of seeds for which it is true; None if it was never tested."""
    return None if all(flag is None for flag in flags) else sum(bool(flag) for flag in flags)
