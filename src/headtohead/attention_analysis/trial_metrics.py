"""Head metrics of trials: computed at the end of a trial (attention.json) and averaged over seeds for the findings.

Only transformers built from parts have them. Reading the metrics does not import torch.
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
from headtohead.verdict.intervals import compute_mean_interval

if TYPE_CHECKING:
    from headtohead.data.evaluation_examples import EvaluationExamples
    from headtohead.data.tokenization.tokenizers import TokenizerProtocol
    from headtohead.nn.transformer import Transformer
    from headtohead.training.task_objectives.base import TaskObjective

ATTENTION_FILE = "attention.json"
HEAD_METRIC_NAMES = ("entropy", "distance", "first", "itself", "previous", "padding", "induction", "control", "rise")
MIN_ROWS = 8
"""smallest number of sequences on which heads are measured"""
MAX_ROWS = 48
MAX_BATCH_SIZE = 16
MAX_BATCH_WEIGHTS = 2**24
"""largest number of attention weights in the maps of a batch"""
TARGET_ABLATION_COST = 2e10
"""intended cost of ablating every head: parameters x tokens x forward passes"""
MAX_ABLATION_COST = 4e11
"""cost above which heads are not ablated"""


def write_trial_head_metrics(
    folder: Path,
    model: Transformer,
    examples: EvaluationExamples,
    objective: TaskObjective,
    tokenizer: TokenizerProtocol,
    split: str,
) -> None:
    """Compute every head's metrics on rows of a held-out split and write attention.json.

    Nothing is written for custom attention that returns no maps.
    """
    try:
        num_rows, heads = compute_trial_head_metrics(model, examples, objective, tokenizer)
    except ModelError:
        return
    write_record(folder / ATTENTION_FILE, AttentionFile(split=split, rows=num_rows, heads=heads))


def compute_trial_head_metrics(
    model: Transformer, examples: EvaluationExamples, objective: TaskObjective, tokenizer: TokenizerProtocol
) -> tuple[int, list[HeadMeasures]]:
    """Return the number of rows on which a trained model's heads were measured, and each head's metrics."""
    from headtohead.attention_analysis import head_metrics

    model.eval()
    num_rows = _choose_num_rows(model)
    batch_size = _choose_batch_size(model)
    batches = list(islice(examples.sample(num_rows).iter_batches(batch_size), -(-num_rows // batch_size)))
    heads = head_metrics.compute_batch_head_metrics(model, batches)
    if model.sizes.is_causal:
        heads = head_metrics.add_induction_scores(heads, model, model.context, tokenizer)
    if _is_ablation_affordable(model) and _can_ablate_heads(model):
        heads = _add_loss_increases(model, batches, objective, heads)
    return sum(len(batch.input_ids) for batch in batches), heads


def count_head_metric_passes(model: Transformer) -> float:
    """Return the number of forward passes over a row that `compute_trial_head_metrics` takes."""
    passes_per_row = 1 + (_count_ablation_passes(model) if _is_ablation_affordable(model) else 0)
    return float(_choose_num_rows(model) * passes_per_row)


def _choose_num_rows(model: Transformer) -> int:
    """Return the number of rows on which heads are measured: as many as the target cost of ablation allows."""
    return min(MAX_ROWS, max(MIN_ROWS, int(TARGET_ABLATION_COST / _estimate_ablation_cost_per_row(model))))


def _is_ablation_affordable(model: Transformer) -> bool:
    """Return whether ablating every head of a model costs less than the limit."""
    return _choose_num_rows(model) * _estimate_ablation_cost_per_row(model) <= MAX_ABLATION_COST


def _estimate_ablation_cost_per_row(model: Transformer) -> float:
    """Return the cost of ablating every head on one row: parameters x tokens x forward passes."""
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    return float(num_parameters * model.context * _count_ablation_passes(model))


def _count_ablation_passes(model: Transformer) -> int:
    """Return the number of passes over a row that measure the loss with each head ablated, and with none."""
    return 1 + model.sizes.layers * model.sizes.heads


def _choose_batch_size(model: Transformer) -> int:
    """Return a batch size whose attention maps fit into memory."""
    weights_per_row = model.sizes.layers * model.sizes.heads * model.context**2
    return min(MAX_BATCH_SIZE, max(1, MAX_BATCH_WEIGHTS // weights_per_row))


def _can_ablate_heads(model: Transformer) -> bool:
    """Return whether every layer is run once and has a merge, whose input contains the separate heads."""
    from headtohead.attention_analysis.head_metrics import find_first_merge

    return model.stack.depth == len(model.layers) and all(find_first_merge(layer) for layer in model.layers)


def _add_loss_increases(
    model: Transformer, batches: Sequence[Any], objective: TaskObjective, heads: Sequence[HeadMeasures]
) -> list[HeadMeasures]:
    """Return a trial's head metrics with the loss increase when each head is ablated, and its t interval over rows."""
    import torch

    from headtohead.attention_analysis import head_metrics
    from headtohead.training.task_objectives.evaluation_pass import run_evaluation_pass

    device = torch.device("cpu")
    baseline = run_evaluation_pass(model, objective, batches, device)
    losses_by_head = head_metrics.compute_ablated_losses(
        model, heads, lambda: run_evaluation_pass(model, objective, batches, device).losses
    )
    extended_heads = []
    for head, ablated_losses in zip(heads, losses_by_head, strict=True):
        row_increases = linearize_loss_increase(ablated_losses - baseline.losses, baseline.counts).tolist()
        mean = head_metrics.to_finite_or_none(statistics.fmean(row_increases))
        interval = None if mean is None else compute_mean_interval(row_increases)
        ablation_metrics = {
            "rise": mean,
            "rise_interval": interval and tuple(interval),
            "idle": head_metrics.is_idle_head(interval),
        }
        extended_heads.append(head.model_copy(update=ablation_metrics))
    return extended_heads


def linearize_loss_increase(
    total_increases: np.ndarray[Any, np.dtype[np.float64]], num_predictions: np.ndarray[Any, np.dtype[np.float64]]
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return each row's contribution to a trial's mean loss increase per prediction (delta method for a ratio of sums).

    The mean of the contributions is sum(total_increases) / sum(num_predictions), and their spread gives its standard
    error.
    """
    mean_increase = total_increases.sum() / num_predictions.sum()
    return np.asarray(mean_increase + (total_increases - mean_increase * num_predictions) / num_predictions.mean())


def average_trial_head_metrics(runs_by_variant: FinishedRuns) -> AttentionFindings | None:
    """Return every head metric's mean over seeds with its t interval, per variant and head; None without data."""
    heads_by_variant: dict[str, list[HeadSummary]] = {}
    first_file: AttentionFile | None = None
    for variant, runs in runs_by_variant.items():
        if files := [run.attention for run in runs.values() if run.attention is not None]:
            first_file = first_file or files[0]
            heads_by_variant[variant] = _average_heads_over_seeds([file.heads for file in files])
    if first_file is None:
        return None
    return AttentionFindings(split=first_file.split, rows=first_file.rows, variants=heads_by_variant)


def _average_heads_over_seeds(heads_by_seed: Sequence[Sequence[HeadMeasures]]) -> list[HeadSummary]:
    """Return the mean of every metric of each head over the trials of one variant."""
    metrics_by_head: dict[tuple[int, int], list[HeadMeasures]] = {}
    for heads in heads_by_seed:
        for head_metrics in heads:
            metrics_by_head.setdefault((head_metrics.layer, head_metrics.head), []).append(head_metrics)
    return [
        HeadSummary(
            layer=layer,
            head=head,
            seeds=len(seed_metrics),
            measures={
                name: _average_metric_over_seeds([getattr(metrics, name) for metrics in seed_metrics])
                for name in HEAD_METRIC_NAMES
            },
            copies=_count_seeds([metrics.copies for metrics in seed_metrics]),
            idle=_count_seeds([metrics.idle for metrics in seed_metrics]),
        )
        for (layer, head), seed_metrics in metrics_by_head.items()
    ]


def _average_metric_over_seeds(seed_values: Sequence[float | None]) -> SeedEstimate | None:
    """Return a head metric's mean over the trials of all seeds with its confidence interval, or None without values."""
    known_values = [value for value in seed_values if value is not None]
    if not known_values:
        return None
    return SeedEstimate(mean=statistics.fmean(known_values), interval=compute_average_interval("loss", known_values))


def _count_seeds(flags: Sequence[bool | None]) -> int | None:
    """Return for how many seeds a head property (copies, idle) holds; None if it was never tested."""
    return None if all(flag is None for flag in flags) else sum(bool(flag) for flag in flags)
