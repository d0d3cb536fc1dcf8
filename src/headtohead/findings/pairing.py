"""Collect evidence of pairing, that a variant and the baseline started from equal tensors and saw the same batches.

The record also holds the costs of both.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase

from pydantic import JsonValue

from headtohead.config.experiment import BASELINE, Experiment
from headtohead.config.tables.model import CustomModelConfig
from headtohead.config.trial_settings import diff_settings_from_baseline
from headtohead.experiment.run_folder import FinishedRuns, Run
from headtohead.experiment.schemas import PairingRecord

SETTINGS_CHANGING_BATCHES = (
    "data.",
    "training.batch_size",
    "training.order",
    "training.budget",
    "model.context",
    "model.pretrained",
    "model.max_length",
)
"""settings that are meant to change the batches"""
SETTINGS_CHANGING_INITIALIZATION = {
    "model.init_from": "*",
    "model.tie_word_embeddings": "embedding.*",
    "model.init": "*",
    # Biases are initialized within a bound that depends on the layer's fan-in.
    "model.width": "*",
    "model.feedforward": "*.feedforward.*",
    "model.head_dim": "*.attention.*",
    "model.classifier_hidden": "classifier.*",
}
"""settings that are meant to change the initial values of tensors, with a pattern of the tensor names"""
RunPair = tuple[Run, Run]
"""the runs of the baseline and of a variant with the same seed"""


def check_pairing(experiment: Experiment, variant: str, finished_runs: FinishedRuns) -> PairingRecord:
    """Return the evidence of pairing and the costs of a variant and the baseline, from the seeds that both have.

    The record gives a reason if initial tensors or batches differ although the variant does not change them.
    """
    settings = diff_settings_from_baseline(experiment, variant)
    pairs = [
        (finished_runs[BASELINE][seed], run)
        for seed, run in finished_runs[variant].items()
        if seed in finished_runs[BASELINE]
    ]
    record = PairingRecord(settings=settings, changes_multiple_settings=len(settings) > 1, seeds=len(pairs))
    if not pairs:
        return record
    # Evidence of pairing: equal initial tensors and equal batches.
    num_shared, num_equal = _count_equal_initial_tensors(pairs, settings)
    same_batches = all(
        baseline_run.start.schedule_digest == variant_run.start.schedule_digest for baseline_run, variant_run in pairs
    )
    # Costs: median time per step, FLOPs and memory.
    seconds_per_step = _compute_median_costs(pairs, lambda run: run.result.training.seconds_per_step)
    first_baseline, first_variant = pairs[0]
    flops = first_baseline.start.flops_per_token, first_variant.start.flops_per_token
    is_counted_in_epochs = experiment.training.is_counted_in_epochs
    return record.model_copy(
        update={
            "tensors": len(first_variant.start.tensor_hashes),
            "shared_tensors": num_shared,
            "equal_tensors": num_equal,
            "same_batches": same_batches,
            "unpaired_reason": _explain_unpaired_runs(
                settings, pairs[0], same_batches, has_equal_tensors=num_equal >= num_shared
            ),
            "parameters": (first_baseline.start.parameters, first_variant.start.parameters),
            "flops_per_token": None if None in flops else flops,
            "seconds_per_step": seconds_per_step,
            "seconds_per_epoch": (
                seconds_per_step[0] * first_baseline.start.steps_per_epoch,
                seconds_per_step[1] * first_variant.start.steps_per_epoch,
            )
            if is_counted_in_epochs
            else None,
            "peak_memory": _compute_median_costs(pairs, lambda run: run.result.training.peak_memory),
        }
    )


def _count_equal_initial_tensors(pairs: Sequence[RunPair], settings: Mapping[str, JsonValue]) -> tuple[int, int]:
    """Return, as evidence of pairing, the number of shared initial tensors, and how many are equal for every seed."""
    num_shared = num_equal = 0
    excluded_patterns = [
        pattern for setting, pattern in SETTINGS_CHANGING_INITIALIZATION.items() if setting in settings
    ]
    for baseline_run, variant_run in pairs:
        baseline_hashes, variant_hashes = baseline_run.start.tensor_hashes, variant_run.start.tensor_hashes
        shared_names = [
            name
            for name in variant_hashes
            if name in baseline_hashes
            and _get_hashed_shape(baseline_hashes[name]) == _get_hashed_shape(variant_hashes[name])
        ]
        declared_names = {*baseline_run.start.declared_starts, *variant_run.start.declared_starts}
        shared_names = [
            name
            for name in shared_names
            if name not in declared_names and not any(fnmatchcase(name, pattern) for pattern in excluded_patterns)
        ]
        num_shared = len(shared_names)
        num_equal = min(
            sum(baseline_hashes[name] == variant_hashes[name] for name in shared_names), num_equal or num_shared
        )
    return num_shared, num_equal


def _get_hashed_shape(tensor_hash: str) -> str:
    """Return the shape encoded in a tensor hash of the form "SHAPE:HASH"."""
    return tensor_hash.split(":", maxsplit=1)[0]


def _explain_unpaired_runs(
    settings: Mapping[str, JsonValue], pair: RunPair, same_batches: bool, *, has_equal_tensors: bool
) -> str | None:
    """Return the reason why two runs were not trained under the same conditions, or None if they were."""
    changes_batches = any(name.startswith(SETTINGS_CHANGING_BATCHES) for name in settings)
    if not same_batches and not changes_batches:
        return "was trained on different batches than the baseline"
    # User modules initialize their own weights, so differences in them are reported but prove nothing.
    must_share_tensors = all(not isinstance(run.trial.model, CustomModelConfig) for run in pair)
    must_share_tensors = must_share_tensors and not any(name.startswith("model.pretrained") for name in settings)
    return "started from different weights than the baseline" if must_share_tensors and not has_equal_tensors else None


def _compute_median_costs(pairs: Sequence[RunPair], get_cost: Callable[[Run], float]) -> tuple[float, float]:
    """Return the median cost of the baseline runs and that of the variant runs."""
    baseline_median = statistics.median(get_cost(baseline_run) for baseline_run, _ in pairs)
    variant_median = statistics.median(get_cost(variant_run) for _, variant_run in pairs)
    return baseline_median, variant_median
