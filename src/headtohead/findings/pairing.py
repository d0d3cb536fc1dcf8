"""Evidence that a variant and the baseline were trained alike (same initial tensors, same batches), and their costs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase

from pydantic import JsonValue

from headtohead.config import loading, model
from headtohead.config.experiment import BASELINE, Experiment
from headtohead.experiment.run_folder import FinishedRuns, Run
from headtohead.experiment.schemas import PairingRecord

SETTINGS_CHANGING_BATCHES = (
    "data.",
    "training.batch_size",
    "training.group_by_length",
    "training.sampling",
    "training.steps",
    "model.context",
    "model.pretrained",
    "model.max_length",
)
"""settings that are meant to change the batches"""
SETTINGS_CHANGING_INITIALIZATION = {
    "model.init_from": "*",
    "model.embedding_init_std": "embedding.*",
    "model.tie_word_embeddings": "embedding.*",
    "model.position": "positions.*",
    "model.output_init": "output.*",
    "model.output_bias": "output.*",
    # Biases are initialised within a bound that depends on the layer's fan-in.
    "model.width": "*",
    "model.feedforward": "*.feedforward.*",
    "model.head_dim": "*.attention.*",
    "model.classifier_hidden": "classifier.*",
}
"""settings that are meant to change the initial values of tensors, with a pattern of the tensor names"""
RunPair = tuple[Run, Run]


def check_pairing(experiment: Experiment, variant: str, finished_runs: FinishedRuns) -> PairingRecord:
    """Compare the initial tensors, batches and costs of a variant with those of the baseline.

    Only seeds that both have are compared. The record gives a reason if the two were not trained alike.
    """
    settings = loading.diff_from_baseline(experiment, variant)
    pairs = [
        (finished_runs[BASELINE][seed], run)
        for seed, run in finished_runs[variant].items()
        if seed in finished_runs[BASELINE]
    ]
    record = PairingRecord(settings=settings, changes_multiple_settings=len(settings) > 1, seeds=len(pairs))
    if not pairs:
        return record
    # Evidence of pairing: equal initial tensors and equal batches.
    num_shared, num_equal = _count_equal_tensors(pairs, settings)
    same_batches = all(
        baseline_run.start.schedule_digest == variant_run.start.schedule_digest for baseline_run, variant_run in pairs
    )
    # Costs: median time per step, FLOPs and memory.
    seconds = _compute_medians(pairs, lambda run: run.result.training.seconds_per_step)
    first_baseline, first_variant = pairs[0]
    flops = first_baseline.start.flops_per_token, first_variant.start.flops_per_token
    is_counted_in_epochs = isinstance(experiment.training.steps, str)
    return record.model_copy(
        update={
            "tensors": len(first_variant.start.tensor_hashes),
            "shared_tensors": num_shared,
            "equal_tensors": num_equal,
            "same_batches": same_batches,
            "unpaired_reason": _explain_unpaired(
                settings, pairs[0], same_batches, has_equal_tensors=num_equal >= num_shared
            ),
            "parameters": (first_baseline.start.parameters, first_variant.start.parameters),
            "flops_per_token": None if None in flops else flops,
            "seconds_per_step": seconds,
            "seconds_per_epoch": (
                seconds[0] * first_baseline.start.steps_per_epoch,
                seconds[1] * first_variant.start.steps_per_epoch,
            )
            if is_counted_in_epochs
            else None,
            "peak_memory": _compute_medians(pairs, lambda run: run.result.training.peak_memory),
        }
    )


def _count_equal_tensors(pairs: Sequence[RunPair], settings: Mapping[str, JsonValue]) -> tuple[int, int]:
    """Return how many initial tensors of equal shape a pair of models shares, and how many are equal for every seed."""
    num_shared = num_equal = 0
    excluded_patterns = [
        pattern for setting, pattern in SETTINGS_CHANGING_INITIALIZATION.items() if setting in settings
    ]
    for baseline_run, variant_run in pairs:
        baseline_hashes, variant_hashes = baseline_run.start.tensor_hashes, variant_run.start.tensor_hashes
        shared_names = [
            name
            for name in variant_hashes
            if name in baseline_hashes and _get_shape(baseline_hashes[name]) == _get_shape(variant_hashes[name])
        ]
        shared_names = [
            name for name in shared_names if not any(fnmatchcase(name, pattern) for pattern in excluded_patterns)
        ]
        num_shared = len(shared_names)
        num_equal = min(
            sum(baseline_hashes[name] == variant_hashes[name] for name in shared_names), num_equal or num_shared
        )
    return num_shared, num_equal


def _get_shape(tensor_hash: str) -> str:
    """Return the shape encoded in a tensor hash of the form "SHAPE:HASH"."""
    return tensor_hash.split(":", maxsplit=1)[0]


def _explain_unpaired(
    settings: Mapping[str, JsonValue], pair: RunPair, same_batches: bool, *, has_equal_tensors: bool
) -> str | None:
    """Return why two runs that should have been trained alike were not, or None if they were."""
    is_intended = any(name.startswith(SETTINGS_CHANGING_BATCHES) for name in settings)
    if not same_batches and not is_intended:
        return "was trained on other batches than the baseline"
    # User modules initialise their own weights, so differences in them are reported but prove nothing.
    is_known = all(not isinstance(run.trial.model, model.CustomModelConfig) for run in pair)
    is_known = is_known and not any(name.startswith("model.pretrained") for name in settings)
    return "started from other weights than the baseline" if not has_equal_tensors and is_known else None


def _compute_medians(pairs: Sequence[RunPair], get_cost: Callable[[Run], float]) -> tuple[float, float]:
    """Return the median cost of the baseline runs and that of the variant runs."""
    baseline_median, variant_median = (statistics.median(get_cost(pair[side]) for pair in pairs) for side in (0, 1))
    return baseline_median, variant_median
