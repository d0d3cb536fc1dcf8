"""What each head of a trained model does: measured at the end of a trial, gathered over seeds for the findings.

Only transformers of parts are measured; a network of the user's own shows no maps. Reading needs no torch.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headtohead.atomic_io import write_json
from headtohead.config.tasks import Target
from headtohead.errors import ModelError
from headtohead.experiment import schemas
from headtohead.experiment.run_folder import SCHEMA_VERSION, Run
from headtohead.verdict.statistics import compute_mean_interval

if TYPE_CHECKING:
    from headtohead.data.examples import EvaluationExamples
    from headtohead.data.tokenizers import TokenizerProtocol
    from headtohead.nn.transformer import Transformer

FILE_NAME = "attention.json"
MEASURE_NAMES = ("entropy", "distance", "first", "itself", "previous", "padding", "induction", "control", "rise")
MAX_ROWS, MIN_ROWS, MAX_BATCH_SIZE = 48, 8, 16
MAX_BATCH_WEIGHTS = 2**26
INDUCTION_LENGTH = 64
"""tokens of the rows on which copying is tried"""
TARGET_ABLATION_COST, MAX_ABLATION_COST = 2e10, 4e11
"""parameters times tokens times passes: what silencing every head may cost, a second; and when it is left out"""

HeadRecord = dict[str, Any]


def write_head_measures(
    folder: Path, model: Transformer, examples: EvaluationExamples, tokenizer: TokenizerProtocol, split: str
) -> None:
    """Measure every head on some rows of a held-out split, and leave it in the run folder. An attention of the user's
    own may show no maps: then there is nothing to leave."""
    try:
        found = compute_head_measures(model, examples, tokenizer)
    except ModelError:
        return
    write_json(folder / FILE_NAME, {"schema": SCHEMA_VERSION, "split": split, **found})


def compute_head_measures(
    model: Transformer, examples: EvaluationExamples, tokenizer: TokenizerProtocol
) -> dict[str, Any]:
    """The number of rows that were looked at, and a row of measures for each head."""
    from headtohead.attention_analysis import head_metrics

    model.eval()
    few = min(MAX_ROWS, max(MIN_ROWS, int(TARGET_ABLATION_COST / _estimate_row_cost(model))))
    size = _choose_batch_size(model)
    batches = list(islice(examples.sample(few).batches(size), -(-few // size)))
    found = head_metrics.measure_heads(model, batches)
    if model.sizes.is_causal:
        special = (tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id)
        length = min(model.context, INDUCTION_LENGTH)
        score, control = head_metrics.compute_induction_scores(
            model, tokenizer.vocab_size, length=length, special_ids=special
        )
        for row in found:
            at = row["layer"] - 1, row["head"] - 1
            row |= {"induction": float(score[at]), "control": float(control[at])}
    if few * _estimate_row_cost(model) <= MAX_ABLATION_COST and _can_ablate_heads(model):
        _add_loss_increases(model, batches, examples.target, found)
    found = [{name: _replace_nan(value) for name, value in row.items()} for row in found]
    for row in found:
        row |= {"copies": head_metrics.is_induction_head(row), "idle": head_metrics.is_idle_head(row)}
    return {"rows": sum(len(batch.input_ids) for batch in batches), "heads": found}


def _estimate_row_cost(model: Transformer) -> float:
    passes = 1 + model.sizes.layers * model.sizes.heads
    return float(sum(p.numel() for p in model.parameters()) * model.context * passes)


def _choose_batch_size(model: Transformer) -> int:
    """So many rows that their maps do not fill the memory."""
    weights = model.sizes.layers * model.sizes.heads * model.context**2
    return min(MAX_BATCH_SIZE, max(1, MAX_BATCH_WEIGHTS // weights))


def _can_ablate_heads(model: Transformer) -> bool:
    """A user's own attention may have no place where its heads are still apart."""
    from headtohead.nn.parts.merge import Merge

    return all(sum(isinstance(m, Merge) for m in layer.modules()) == 1 for layer in model.layers)


def _add_loss_increases(
    model: Transformer, batches: Sequence[Any], target: Target, head_records: list[HeadRecord]
) -> None:
    """How much the loss rises without each head, with a t interval over the rows that it was tried on."""
    import torch

    from headtohead.attention_analysis import head_metrics
    from headtohead.training.objectives import build_objective, evaluate

    objective, device = build_objective(target), torch.device("cpu")
    whole = evaluate(model, objective, batches, device)

    def score() -> np.ndarray[Any, np.dtype[np.float64]]:
        return evaluate(model, objective, batches, device).losses

    rises = head_metrics.compute_loss_increases(model, model.sizes.layers, model.sizes.heads, score, whole.losses)
    for row in head_records:
        each = linearize_ratio(rises[row["layer"] - 1, row["head"] - 1], whole.counts)
        row |= {"rise": float(each.mean()), "rise_interval": compute_mean_interval(each.tolist())}


def linearize_ratio(
    totals: np.ndarray[Any, np.dtype[np.float64]], counts: np.ndarray[Any, np.dtype[np.float64]]
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Each row's share in sum(totals) / sum(counts): their mean is the ratio, and their spread its error."""
    ratio = totals.sum() / counts.sum()
    return np.asarray(ratio + (totals - ratio * counts) / counts.mean())


def _replace_nan(value: Any) -> Any:
    """What is not a number is not known."""
    return None if isinstance(value, float) and np.isnan(value) else value


def summarize_over_seeds(runs_by_variant: Mapping[str, Mapping[int, Run]]) -> dict[str, Any] | None:
    """For each variant and head the mean of every measure over seeds, with a t interval; None if none was measured."""
    variants: dict[str, list[HeadRecord]] = {}
    about: dict[str, Any] = {}
    for name, found in runs_by_variant.items():
        files = [
            schemas.read_validated(path, schemas.AttentionFile)
            for run in found.values()
            if (path := run.folder / FILE_NAME).is_file()
        ]
        if files:
            about = about or {"split": files[0]["split"], "rows": files[0]["rows"]}
            variants[name] = _aggregate_seeds([file["heads"] for file in files])
    return {**about, "variants": variants} if variants else None


def _aggregate_seeds(runs: Sequence[Sequence[HeadRecord]]) -> list[HeadRecord]:
    heads: dict[tuple[int, int], list[HeadRecord]] = {}
    for rows in runs:
        for row in rows:
            heads.setdefault((row["layer"], row["head"]), []).append(row)
    return [
        {
            "layer": layer,
            "head": head,
            "seeds": len(rows),
            **{name: _summarize_values([row.get(name) for row in rows]) for name in MEASURE_NAMES},
            **{word: _count_true([row.get(word) for row in rows]) for word in ("copies", "idle")},
        }
        for (layer, head), rows in heads.items()
    ]


def _summarize_values(values: Sequence[float | None]) -> dict[str, Any] | None:
    known = [value for value in values if value is not None]
    return {"mean": statistics.fmean(known), "interval": compute_mean_interval(known)} if known else None


def _count_true(flags: Sequence[bool | None]) -> int | None:
    """With how many seeds; None when it was never tried."""
    return None if all(answer is None for answer in flags) else sum(bool(answer) for answer in flags)
