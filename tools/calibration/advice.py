"""Check advice such as "About 7 more seeds would settle it", which should hold in four of five cases.

No advice holds in four of five cases at a fixed effect, so the true differences have a distribution: normal around 0,
with the standard deviation of the paired difference of one seed. The equivalence margin is a quarter of it. Experiments
that the first analysis leaves open and that get advice receive the advised seeds or documents and are judged again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headtohead.verdict.compare import compare_scores
from headtohead.verdict.decision_rule import OPEN_OUTCOMES
from headtohead.verdict.interim import AlphaBudget
from headtohead.verdict.record import Verdict
from headtohead.verdict.scores import Scores

from .results import ResultStore

NUM_EXPERIMENTS = 2_400
MARGIN = 0.25
"""in standard deviations of the paired difference of one seed"""
FIRST_SEEDS = (3, 5, 8)
MAX_ADDED_UNITS = 2_000
"""larger numbers of advised seeds or documents are not added"""
EFFECT_LIMITS = (0.25, 0.5, 1.0, np.inf)


@dataclass(frozen=True)
class AdviceSetting:
    """Documents of the test set, and standard deviation of their effects in that of seeds; 1 document: seeds only."""

    name: str
    documents: int
    document_std: float
    follows_documents: bool = False


SETTINGS = (
    AdviceSetting("one score per seed, seeds added", 1, 0.0),
    AdviceSetting("30 documents, seeds added", 30, 0.5),
    AdviceSetting("10 documents, documents added", 10, 2.0, follows_documents=True),
)


@dataclass(frozen=True)
class AdviceRow:
    """How often advice was given, and how often it was true."""

    setting: str
    first_seeds: int
    experiments: int
    settled_at_once: int
    advised: int
    true: int
    advised_by_effect: tuple[int, ...]
    """experiments with advice by true difference, below each of `EFFECT_LIMITS`"""
    true_by_effect: tuple[int, ...]


def study_advice(store: ResultStore) -> list[AdviceRow]:
    """Return a row for each setting and number of first seeds."""
    return [
        store.get(
            "advice",
            f"{setting}; {seeds}; {NUM_EXPERIMENTS}",
            AdviceRow,
            lambda setting=setting, seeds=seeds: _measure_advice(setting, seeds),  # type: ignore[misc]
        )
        for setting in SETTINGS
        for seeds in FIRST_SEEDS
    ]


def _measure_advice(setting: AdviceSetting, first_seeds: int) -> AdviceRow:
    """Simulate experiments that follow the advice of their first analysis."""
    rng = np.random.default_rng([first_seeds, setting.documents])
    settled_at_once = 0
    advice_results: list[tuple[int, bool]] = []
    for _ in range(NUM_EXPERIMENTS):
        effect = float(rng.standard_normal())
        experiment = SimulatedExperiment(rng, effect, setting)
        verdict = experiment.judge(first_seeds, setting.documents, AlphaBudget())
        if verdict.outcome not in OPEN_OUTCOMES:
            settled_at_once += 1
            continue
        advice = verdict.additional_documents if setting.follows_documents else verdict.additional_seeds
        if advice is None or advice > MAX_ADDED_UNITS:
            continue
        seeds = first_seeds if setting.follows_documents else first_seeds + advice
        documents = setting.documents + advice if setting.follows_documents else setting.documents
        budget = AlphaBudget().add_analysis("variant", first_seeds, setting.documents)
        verdict = experiment.judge(seeds, documents, budget)
        advice_results.append((int(np.searchsorted(EFFECT_LIMITS, abs(effect))), verdict.outcome not in OPEN_OUTCOMES))
    counts = [
        tuple(
            sum(result_bin == bin_index and is_true >= at_least for bin_index, is_true in advice_results)
            for result_bin in range(4)
        )
        for at_least in (0, 1)
    ]
    return AdviceRow(
        setting.name,
        first_seeds,
        NUM_EXPERIMENTS,
        settled_at_once,
        len(advice_results),
        sum(is_true for _, is_true in advice_results),
        *counts,
    )


class SimulatedExperiment:
    """Noise of seeds and documents. More data extends the scores of earlier analyses."""

    def __init__(self, rng: np.random.Generator, effect: float, setting: AdviceSetting) -> None:
        self.rng, self.effect, self.setting = rng, effect, setting
        self.seed_effects, self.document_effects = np.zeros(0), np.zeros(0)

    def judge(self, num_seeds: int, num_documents: int, budget: AlphaBudget) -> Verdict:
        """Return the verdict on this many seeds and documents, at least as many as before."""
        added_seeds, added_documents = num_seeds - len(self.seed_effects), num_documents - len(self.document_effects)
        self.seed_effects = np.append(self.seed_effects, self.rng.standard_normal(added_seeds))
        noise = self.setting.document_std * self.rng.standard_normal(added_documents)
        self.document_effects = np.append(self.document_effects, noise)
        differences = self.effect + self.seed_effects[:, None] + self.document_effects
        seeds, weights = tuple(range(num_seeds)), np.ones(num_documents)
        baseline, variant = (Scores(seeds, values, weights) for values in (np.zeros_like(differences), differences))
        (verdict,) = compare_scores(
            baseline, {"variant": variant}, metric="loss", equivalence_margin=MARGIN, budget=budget
        )
        return verdict
