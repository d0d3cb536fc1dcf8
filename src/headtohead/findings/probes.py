"""Collect what runs generate and predict for the probes of an experiment file: prompts and sentences."""

from __future__ import annotations

from collections.abc import Mapping

from headtohead.experiment.run_folder import Run
from headtohead.experiment.schemas import SeedSample, TextScore

MAX_SAMPLE_SEEDS = 3


def collect_samples(runs_by_seed: Mapping[int, Run]) -> list[SeedSample]:
    """Return the continuations that the first few seeds generate for the probe prompts."""
    return [
        SeedSample(prompt=sample.prompt, text=sample.text, seed=seed)
        for seed, run in list(runs_by_seed.items())[:MAX_SAMPLE_SEEDS]
        for sample in run.probes.samples
    ]


def collect_probe_sentence_results(
    runs_by_seed: Mapping[int, Run],
) -> dict[str, dict[str, float | tuple[str, float]]]:
    """Return {probe sentence: {seed: result}}, where a result is a perplexity, or a class with its confidence."""
    results: dict[str, dict[str, float | tuple[str, float]]] = {}
    for seed, run in runs_by_seed.items():
        for sentence, result in run.probes.sentences.items():
            results.setdefault(sentence, {})[str(seed)] = (
                result.perplexity if isinstance(result, TextScore) else (result.label, result.confidence)
            )
    return results
