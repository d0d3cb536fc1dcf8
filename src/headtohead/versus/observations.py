"""What can be observed about a comparison's fairness without access to the models."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from headtohead.config.experiment import BASELINE
from headtohead.experiment.schemas.versus import Observation
from headtohead.versus.comparison import ComparisonFolder
from headtohead.versus.records import CommandRun, Runs


def observe(comparison: ComparisonFolder, counted: Runs) -> list[Observation]:
    """Return what the runs show about the fairness of the comparison."""
    observations = _compare_repeat(comparison, counted[BASELINE])
    for name in comparison.config.variants:
        if not comparison.config.is_noise:
            observations += _compare_starts(name, counted[BASELINE], counted[name])
    slow = {name: statistics.median(run.seconds for run in runs.values()) for name, runs in counted.items() if runs}
    if BASELINE in slow:
        observations += [
            Observation(
                question=f"How long does {name} take?",
                answer=f"{seconds:.1f} s per run, {seconds / slow[BASELINE]:.2f} times the baseline",
            )
            for name, seconds in slow.items()
            if name != BASELINE and slow[BASELINE] > 0
        ]
    return observations


def _compare_repeat(comparison: ComparisonFolder, baseline: Mapping[int, CommandRun]) -> list[Observation]:
    """Report whether the baseline gave the same values when its first seed was run a second time."""
    seed, repeated = comparison.config.first_seed, comparison.read_repeat()
    question = f"Does {BASELINE} repeat its values with the same seed?"
    if comparison.config.is_noise or seed not in baseline:
        return []
    if repeated is None:
        return [Observation(question=question, answer="not known: no run was repeated")]
    if not repeated.is_counted:
        answer = f"no: the second run has no value ({repeated.status})"
        return [Observation(question=question, answer=answer, is_concern=True)]
    first = baseline[seed]
    if repeated.curve == first.curve:
        count = f"all {len(first.curve)} values of seed {seed} are" if len(first.curve) > 1 else f"seed {seed} is"
        return [Observation(question=question, answer=f"yes: {count} equal bit for bit")]
    answer = (
        f"no: seed {seed} gives {first.value:.6g} and {repeated.value:.6g}; differences between variants with equal "
        "seeds contain this noise too"
    )
    return [Observation(question=question, answer=answer, is_concern=True)]


def _compare_starts(
    name: str, baseline: Mapping[int, CommandRun], variant: Mapping[int, CommandRun]
) -> list[Observation]:
    """Report whether runs with the same seed started alike: first values, recorded initial weights and batches."""
    pairs = [(baseline[seed], variant[seed]) for seed in baseline if seed in variant]
    if not pairs:
        return []
    observations = []
    if all(first.curve == second.curve for first, second in pairs):
        answer = f"no: all values of {len(pairs)} seeds are equal, so the change does not reach this metric"
        question = f"Does {name} change any value of the metric?"
        observations.append(Observation(question=question, answer=answer, is_concern=True))
    first_values = [(first.curve[0], second.curve[0]) for first, second in pairs if first.curve and second.curve]
    if first_values and all(len(run.curve) > 1 for pair in pairs for run in pair):
        equal = sum(first == second for first, second in first_values)
        observations.append(
            Observation(
                question=f"Do {BASELINE} and {name} report the same first value with the same seed?",
                answer=f"{equal} of {len(first_values)} seeds",
            )
        )
    for what, field in (("initial weights", "start_digest"), ("batches", "batch_digest")):
        digests = [(getattr(first, field), getattr(second, field)) for first, second in pairs]
        if not all(first and second for first, second in digests):
            answer = "not known: the script does not record them (see headtohead.record)"
            is_concern = False
        else:
            equal = sum(first == second for first, second in digests)
            answer, is_concern = f"{equal} of {len(digests)} seeds", equal < len(digests)
        question = f"Do {BASELINE} and {name} have the same {what} with the same seed?"
        observations.append(Observation(question=question, answer=answer, is_concern=is_concern))
    return observations
