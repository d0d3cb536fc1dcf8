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
from headtohead.errors import ModelError
from headtohead.experiment import schemas
from headtohead.experiment.run_folder import SCHEMA, Run
from headtohead.verdict.statistics import mean_interval

if TYPE_CHECKING:
    from headtohead.data.examples import Examples
    from headtohead.data.tokenizers import Tokens
    from headtohead.nn.transformer import Transformer

FILE = "attention.json"
MEASURES = ("entropy", "distance", "first", "itself", "previous", "padding", "induction", "control", "rise")
ROWS, FEWEST_ROWS, AT_ONCE = 48, 8, 16
MOST_WEIGHTS = 2**26
COPYING = 64
"""tokens of the rows on which copying is tried"""
WORK, MOST_WORK = 2e10, 4e11
"""parameters times tokens times passes: what silencing every head may cost, a second; and when it is left out"""

Row = dict[str, Any]


def write(folder: Path, model: Transformer, examples: Examples, tokenizer: Tokens, split: str) -> None:
    """Measure every head on some rows of a held-out split, and leave it in the run folder. An attention of the user's
    own may show no maps: then there is nothing to leave."""
    try:
        found = measure(model, examples, tokenizer)
    except ModelError:
        return
    write_json(folder / FILE, {"schema": SCHEMA, "split": split, **found})


def measure(model: Transformer, examples: Examples, tokenizer: Tokens) -> dict[str, Any]:
    """The number of rows that were looked at, and a row of measures for each head."""
    from headtohead.attention_analysis import head_metrics

    model.eval()
    few = min(ROWS, max(FEWEST_ROWS, int(WORK / _work_of_a_row(model))))
    size = _at_once(model)
    batches = list(islice(examples.sample(few).batches(size), -(-few // size)))
    found = head_metrics.measure_heads(model, batches)
    if model.sizes.causal:
        special = (tokenizer.pad_id, tokenizer.unknown_id, tokenizer.start_id, tokenizer.stop_id)
        length = min(model.context, COPYING)
        score, control = head_metrics.induction(model, tokenizer.vocab_size, length=length, special=special)
        for row in found:
            at = row["layer"] - 1, row["head"] - 1
            row |= {"induction": float(score[at]), "control": float(control[at])}
    if few * _work_of_a_row(model) <= MOST_WORK and _can_be_silenced(model):
        _add_rises(model, batches, examples.task, found)
    found = [{name: _known(value) for name, value in row.items()} for row in found]
    for row in found:
        row |= {"copies": head_metrics.copies(row), "idle": head_metrics.idle(row)}
    return {"rows": sum(len(batch.input_ids) for batch in batches), "heads": found}


def _work_of_a_row(model: Transformer) -> float:
    passes = 1 + model.sizes.layers * model.sizes.heads
    return float(sum(p.numel() for p in model.parameters()) * model.context * passes)


def _at_once(model: Transformer) -> int:
    """So many rows that their maps do not fill the memory."""
    weights = model.sizes.layers * model.sizes.heads * model.context**2
    return min(AT_ONCE, max(1, MOST_WEIGHTS // weights))


def _can_be_silenced(model: Transformer) -> bool:
    """A user's own attention may have no place where its heads are still apart."""
    from headtohead.nn.parts.merge import Merge

    return all(sum(isinstance(m, Merge) for m in layer.modules()) == 1 for layer in model.layers)


def _add_rises(model: Transformer, batches: Sequence[Any], task: str, found: list[Row]) -> None:
    """How much the loss rises without each head, with a t interval over the rows that it was tried on."""
    import torch

    from headtohead.attention_analysis import head_metrics
    from headtohead.training.objectives import evaluate, objective_of

    objective, device = objective_of(task), torch.device("cpu")
    whole = evaluate(model, objective, batches, device)

    def score() -> np.ndarray[Any, np.dtype[np.float64]]:
        return evaluate(model, objective, batches, device).losses

    rises = head_metrics.loss_rises(model, model.sizes.layers, model.sizes.heads, score, whole.losses)
    for row in found:
        each = per_token(rises[row["layer"] - 1, row["head"] - 1], whole.counts)
        row |= {"rise": float(each.mean()), "rise_interval": mean_interval(each.tolist())}


def per_token(
    totals: np.ndarray[Any, np.dtype[np.float64]], counts: np.ndarray[Any, np.dtype[np.float64]]
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Each row's share in sum(totals) / sum(counts): their mean is the ratio, and their spread its error."""
    ratio = totals.sum() / counts.sum()
    return np.asarray(ratio + (totals - ratio * counts) / counts.mean())


def _known(value: Any) -> Any:
    """What is not a number is not known."""
    return None if isinstance(value, float) and np.isnan(value) else value


def read(finished: Mapping[str, Mapping[int, Run]]) -> dict[str, Any] | None:
    """For each variant and head the mean of every measure over seeds, with a t interval; None if none was measured."""
    variants: dict[str, list[Row]] = {}
    about: dict[str, Any] = {}
    for name, found in finished.items():
        files = [
            schemas.read(path, schemas.AttentionAbout)
            for run in found.values()
            if (path := run.folder / FILE).is_file()
        ]
        if files:
            about = about or {"split": files[0]["split"], "rows": files[0]["rows"]}
            variants[name] = _over_seeds([file["heads"] for file in files])
    return {**about, "variants": variants} if variants else None


def _over_seeds(runs: Sequence[Sequence[Row]]) -> list[Row]:
    heads: dict[tuple[int, int], list[Row]] = {}
    for rows in runs:
        for row in rows:
            heads.setdefault((row["layer"], row["head"]), []).append(row)
    return [
        {
            "layer": layer,
            "head": head,
            "seeds": len(rows),
            **{name: _mean([row.get(name) for row in rows]) for name in MEASURES},
            **{word: _count([row.get(word) for row in rows]) for word in ("copies", "idle")},
        }
        for (layer, head), rows in heads.items()
    ]


def _mean(values: Sequence[float | None]) -> dict[str, Any] | None:
    known = [value for value in values if value is not None]
    return {"mean": statistics.fmean(known), "interval": mean_interval(known)} if known else None


def _count(answers: Sequence[bool | None]) -> int | None:
    """With how many seeds; None when it was never tried."""
    return None if all(answer is None for answer in answers) else sum(bool(answer) for answer in answers)
