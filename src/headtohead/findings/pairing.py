"""Evidence that variant and baseline were trained alike (equal initial tensors, equal batches), and their costs."""

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
"""settings that change the batches on purpose"""
SETTINGS_CHANGING_INITIALIZATION = {
    "model.init_from": "*",
    "model.embedding_init_std": "embedding.*",
    "model.position": "positions.*",
    "model.output_init": "output.*",
    "model.output_bias": "output.*",
    # The bound of a bias depends on the number of inputs of its layer.
    "model.width": "*",
    "model.feedforward": "*.feedforward.*",
    "model.head_dim": "*.attention.*",
    "model.classifier_hidden": "classifier.*",
}
"""settings that change the initialisation of tensors of equal shape on purpose, and the names of those tensors"""
RunPair = tuple[Run, Run]


def check_pairing(experiment: Experiment, variant: str, finished: FinishedRuns) -> PairingRecord:
    """Compare initial tensors, batches and costs of a variant and the baseline, over the seeds that both have."""
    settings = loading.diff_from_baseline(experiment, variant)
    pairs = [(finished[BASELINE][seed], run) for seed, run in finished[variant].items() if seed in finished[BASELINE]]
    record = PairingRecord(settings=settings, changes_multiple_settings=len(settings) > 1, seeds=len(pairs))
    if not pairs:
        return record
    shared, equal = _count_equal_tensors(pairs, settings)
    same_batches = all(one.start.schedule_digest == other.start.schedule_digest for one, other in pairs)
    seconds = _compute_medians(pairs, lambda run: run.result.training.seconds_per_step)
    first, second = pairs[0]
    is_counted_in_epochs = isinstance(experiment.training.steps, str)
    return record.model_copy(
        update={
            "tensors": len(second.start.tensor_hashes),
            "shared_tensors": shared,
            "equal_tensors": equal,
            "same_batches": same_batches,
            "unpaired_reason": _explain_unpaired(settings, pairs[0], same_batches, has_equal_tensors=equal >= shared),
            "parameters": (first.start.parameters, second.start.parameters),
            "flops_per_token": (first.start.flops_per_token, second.start.flops_per_token),
            "seconds_per_step": seconds,
            "seconds_per_epoch": (
                seconds[0] * first.start.steps_per_epoch,
                seconds[1] * second.start.steps_per_epoch,
            )
            if is_counted_in_epochs
            else None,
            "peak_memory": _compute_medians(pairs, lambda run: run.result.training.peak_memory),
        }
    )


def _count_equal_tensors(pairs: Sequence[RunPair], settings: Mapping[str, JsonValue]) -> tuple[int, int]:
    """Return how many tensors of equal shape both models have, and how many of them are equal with every seed."""
    shared = equal = 0
    changed = [pattern for setting, pattern in SETTINGS_CHANGING_INITIALIZATION.items() if setting in settings]
    for one, other in pairs:
        first, second = one.start.tensor_hashes, other.start.tensor_hashes
        both = [name for name in second if name in first and _get_shape(first[name]) == _get_shape(second[name])]
        both = [name for name in both if not any(fnmatchcase(name, pattern) for pattern in changed)]
        shared = len(both)
        equal = min(sum(first[name] == second[name] for name in both), equal or shared)
    return shared, equal


def _get_shape(tensor_hash: str) -> str:
    return tensor_hash.split(":", maxsplit=1)[0]


def _explain_unpaired(
    settings: Mapping[str, JsonValue], pair: RunPair, same_batches: bool, *, has_equal_tensors: bool
) -> str | None:
    """Return why two runs that should have been trained alike were not; None if they were."""
    is_intended = any(name.startswith(SETTINGS_CHANGING_BATCHES) for name in settings)
    if not same_batches and not is_intended:
        return "was trained on other batches than the baseline"
    # User modules initialise their weights themselves: the counts are shown, and nothing is concluded from them.
    is_known = all(not isinstance(run.trial.model, model.CustomModelConfig) for run in pair)
    is_known = is_known and not any(name.startswith("model.pretrained") for name in settings)
    return "started from other weights than the baseline" if not has_equal_tensors and is_known else None


def _compute_medians(pairs: Sequence[RunPair], get_cost: Callable[[Run], float]) -> tuple[float, float]:
    first, second = (statistics.median(get_cost(pair[side]) for pair in pairs) for side in (0, 1))
    return first, second
