"""Tuned A/A experiments: false verdicts if both sides are tuned separately, with and without the noise of the choice.

python -m tools.calibration.tuned_aa CACHE    train what the cache does not hold, and print the table

Both sides are tuned over the same learning rates with disjoint tuning seeds and no shared trials, as in an experiment
with a [tune] table, and are then compared with fresh seeds, each at its own rate. They differ only in a rotation of the
heads, which the output projection absorbs, so tuned variants are equal and every "helped" or "hurt" is false.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float
from scipy import stats

from headtohead.experiment import loading
from headtohead.verdict.compare import compare_scores
from headtohead.verdict.decision_rule import HELPED, HURT
from headtohead.verdict.interim import AlphaBudget
from headtohead.verdict.scores import Scores
from headtohead.verdict.tuning_variance import TuningVariance, estimate_tuning_variance

from .aa_training import LANGUAGE_MODEL, build_test_examples
from .addresses import (
    TRAINING_ADDRESSES,
    cut_into_blocks,
    normalize_letters,
    read_addresses,
    write_language_model_corpus,
)
from .batched_training import Parameters, TinyModels
from .false_verdicts import skip_advice

NUM_EXPERIMENTS = 1_000
EXPERIMENTS_PER_FILE = 10
LEARNING_RATES = (4e-2, 5.6e-2, 8e-2, 1.1e-1)
TUNING_SEEDS = 2
FRESH_SEEDS = 12
SEED_COUNTS = (5, 8, 12)
FIRST_SEED = 1_000_000
SEEDS_PER_EXPERIMENT = 100
VALIDATION_BLOCKS = 120
VARIANTS = ("baseline", "shift")


@dataclass(frozen=True, eq=False)
class TunedExperiment:
    """Validation losses and test scores of one tuned A/A experiment."""

    tuning: Float[np.ndarray, "sides rates seeds"]
    """mean validation loss"""
    fresh: Float[np.ndarray, "sides seeds examples"]
    """summed test losses at the rate that each side has chosen"""
    weights: Float[np.ndarray, " examples"]
    documents: tuple[str, ...]

    def judge(self, num_seeds: int, *, with_tuning_variance: bool) -> str:
        """Return the verdict's outcome with the first fresh seeds, with or without the noise of the choice."""
        baseline, variant = (
            Scores(tuple(range(num_seeds)), side_losses[:num_seeds], self.weights, (), self.documents)
            for side_losses in self.fresh
        )
        baseline_error, variant_error = (
            estimate_tuning_variance(-side_losses, int(side_losses.mean(axis=1).argmin()))
            for side_losses in self.tuning
        )
        tuning_variances: dict[str, TuningVariance] = (
            {"variant": baseline_error.add(variant_error)} if with_tuning_variance else {}
        )
        with skip_advice():
            (verdict,) = compare_scores(
                baseline,
                {"variant": variant},
                metric="perplexity",
                equivalence_margin=0.01,
                budget=AlphaBudget(num_planned_seeds=num_seeds),
                tuning_variances=tuning_variances,
            )
        return str(verdict.outcome)


def prepare_models(cache: Path) -> dict[tuple[str, float], TinyModels]:
    """Return baseline and variant with every learning rate."""
    addresses = read_addresses()
    folder = cache / "corpus"
    write_language_model_corpus(folder, addresses[:TRAINING_ADDRESSES], addresses[-20:], normalize=normalize_letters)
    models = {}
    for lr in LEARNING_RATES:
        training = {**LANGUAGE_MODEL["training"], "optimizer": {"kind": "adam", "lr": lr}}
        raw = {**LANGUAGE_MODEL, "training": training}
        experiment = loading.build_experiment({**raw, "data": {**raw["data"], "source": str(folder)}}, "tuned")
        models |= {(side, lr): TinyModels.prepare(experiment, side) for side in VARIANTS}
    return models


def train_experiment_batch(experiments: range, models: dict[tuple[str, float], TinyModels]) -> dict[str, np.ndarray]:
    """Tune and train some experiments at once; return arrays with their losses, documents and weights."""
    context = models[VARIANTS[0], LEARNING_RATES[0]].trial.model.context
    text = normalize_letters("\n".join(read_addresses()[TRAINING_ADDRESSES - 1].sentences))
    blocks = cut_into_blocks(text, models[VARIANTS[0], LEARNING_RATES[0]].dataset.tokenizer, context)[
        :VALIDATION_BLOCKS
    ]
    tuning = np.zeros((len(experiments), len(VARIANTS), len(LEARNING_RATES), TUNING_SEEDS))
    for side_index, side in enumerate(VARIANTS):
        seeds = [seed for number in experiments for seed in list_seeds(number, side_index * TUNING_SEEDS, TUNING_SEEDS)]
        for lr_index, lr in enumerate(LEARNING_RATES):
            side_models = models[side, lr]
            losses = side_models.score(side_models.train(seeds), blocks[:, :-1], blocks[:, 1:], blocks[:, 1:] >= 0)
            tuning[:, side_index, lr_index] = losses.mean(axis=1).reshape(-1, TUNING_SEEDS) / context
    chosen_lr_indices = tuning.mean(axis=-1).argmin(axis=-1)
    arrays: dict[str, np.ndarray] = {}
    scores: dict[int, list[np.ndarray]] = {number: [] for number in experiments}
    for side_index, side in enumerate(VARIANTS):
        for lr_index, lr in enumerate(LEARNING_RATES):
            numbers = [
                number
                for number, experiment_index in zip(experiments, chosen_lr_indices, strict=True)
                if experiment_index[side_index] == lr_index
            ]
            seeds = [seed for number in numbers for seed in list_seeds(number, 50, FRESH_SEEDS)]
            trained: Parameters = models[side, lr].train(seeds) if seeds else {}
            for experiment_position, number in enumerate(numbers):
                experiment_seeds = slice(experiment_position * FRESH_SEEDS, (experiment_position + 1) * FRESH_SEEDS)
                parameters = {name: tensor[experiment_seeds] for name, tensor in trained.items()}
                examples = build_test_examples("language model", number, models[side, lr])
                scores[number].append(
                    models[side, lr].score(parameters, examples.input_ids, examples.labels, examples.mask)
                )
                arrays[f"weights-{number}"] = examples.weights.astype(np.float32)
                arrays[f"documents-{number}"] = examples.documents.astype(np.int16)
    for experiment_index, number in enumerate(experiments):
        arrays[f"tuning-{number}"], arrays[f"fresh-{number}"] = (
            tuning[experiment_index],
            np.stack(scores[number]).astype(np.float32),
        )
    return arrays


def list_seeds(experiment: int, first: int, count: int) -> range:
    """Return seeds that belong to one experiment only."""
    start = FIRST_SEED + SEEDS_PER_EXPERIMENT * experiment + first
    return range(start, start + count)


def train_experiments(cache: Path) -> None:
    """Train all experiments that the cache does not hold yet."""
    cache.mkdir(parents=True, exist_ok=True)
    missing = [
        start for start in range(0, NUM_EXPERIMENTS, EXPERIMENTS_PER_FILE) if not get_file_path(cache, start).is_file()
    ]
    models = prepare_models(cache) if missing else {}
    for start in missing:
        cpu = time.process_time()
        tables = train_experiment_batch(range(start, start + EXPERIMENTS_PER_FILE), models)
        temporary = get_file_path(cache, start).with_suffix(".tmp.npz")
        np.savez_compressed(temporary, allow_pickle=False, **tables)
        temporary.rename(get_file_path(cache, start))
        seconds = time.process_time() - cpu
        print(f"{start + EXPERIMENTS_PER_FILE} of {NUM_EXPERIMENTS} experiments, {seconds:.0f} s CPU", flush=True)


def get_file_path(cache: Path, start: int) -> Path:
    """Return the file with the experiments from number `start` on."""
    return cache / f"{start:05d}.npz"


def load_experiments(cache: Path) -> Iterator[TunedExperiment]:
    """Yield all experiments of the cache."""
    for start in range(0, NUM_EXPERIMENTS, EXPERIMENTS_PER_FILE):
        with np.load(get_file_path(cache, start)) as file:
            for number in range(start, start + EXPERIMENTS_PER_FILE):
                yield TunedExperiment(
                    file[f"tuning-{number}"],
                    file[f"fresh-{number}"].astype(float),
                    file[f"weights-{number}"].astype(float),
                    tuple(map(str, file[f"documents-{number}"])),
                )


def main() -> None:
    cache = Path(sys.argv[1])
    train_experiments(cache)
    experiments = list(load_experiments(cache))
    chosen_lr_indices = [experiment.tuning.mean(axis=-1).argmin(axis=-1) for experiment in experiments]
    same_choice_rate = np.mean([row[0] == row[1] for row in chosen_lr_indices])
    print(f"{len(experiments):,} experiments; both sides chose the same rate in {same_choice_rate:.1%}\n")
    print("| fresh seeds | interval | helped | hurt | false verdicts | 95 % interval |\n|---:|---|---:|---:|---:|---:|")
    for num_seeds in SEED_COUNTS:
        for with_tuning_variance, label in ((True, "with the noise of the choice"), (False, "without")):
            outcomes = [item.judge(num_seeds, with_tuning_variance=with_tuning_variance) for item in experiments]
            helped, hurt = outcomes.count(HELPED), outcomes.count(HURT)
            interval = stats.binomtest(helped + hurt, len(outcomes)).proportion_ci()
            print(
                f"| {num_seeds} | {label} | {helped} | {hurt} | {100 * (helped + hurt) / len(outcomes):.1f} % "
                f"| {100 * interval.low:.1f} to {100 * interval.high:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
