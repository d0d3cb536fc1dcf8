"""Audit a model's scores with the live model, right after its final scoring.

A sample of the scored rows is rescored with the trial's device, precision and objective: with later tokens replaced, in
different batches, and after different texts. Every change is measured in nats on the scored tokens, against a limit
that is fixed in advance. A model's random numbers come from a fixed RNG state, so that noise is not mistaken for a
violation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from headtohead.audit.result import CheckResult
from headtohead.audit.scoring_probe import ScoringProbe, measure_changes
from headtohead.audit.user_code import format_model_error
from headtohead.data.batches import IGNORE_INDEX, Batch
from headtohead.training.objectives import Evaluation

NUM_CUT_ROUNDS = 4
"""positions of each row at which the future is replaced; the first is the token with the lowest loss"""
FUTURE_CHECK, BATCH_CHECK, STATE_CHECK, SAVED_CHECK, FINITE_CHECK = (
    "scored-causality",
    "scored-batches",
    "scored-order",
    "scored-weights",
    "finite-scores",
)


def check_batches(probe: ScoringProbe) -> CheckResult:
    """Check that a row's score depends neither on the rest of its batch nor on the order of the rows."""
    means: dict[str, float] = {}
    unsupported = []
    if probe.is_noisy:
        changes = _measure_with_other_neighbours(probe)
        means["other neighbours"] = float(changes.sum()) / probe.count_predictions(slice(None))
    else:
        order = torch.randperm(probe.num_rows, generator=probe.generator)
        half = max(1, probe.batch_size // 2)
        for label, rows, batch_size in (
            ("other neighbours and order", order, probe.batch_size),
            (f"batches of {half}", order[: probe.batch_size], half),
        ):
            try:
                changes = measure_changes(probe.score_rows(rows, batch_size), probe.reference[rows])
            except Exception as error:  # noqa: BLE001  (a user's network may raise anything)
                unsupported.append(f"{label}: {format_model_error(error)}")
                continue
            means[label] = float(changes.sum()) / probe.count_predictions(rows)
            probe.row_noise[rows] = torch.maximum(probe.row_noise[rows], changes.amax(1))
        if not means:
            raise ValueError(f"the model scores no other batches than the original ones: {'; '.join(unsupported)}")
    label = max(means, key=lambda name: means[name])
    procedure = f"{probe.num_rows} scored rows with {', '.join(means)}"
    procedure += f"; not supported by the model: {'; '.join(unsupported)}" if unsupported else ""
    observation = f"{means[label]:.2g} nats per scored token on average ({label}; limit {probe.batch_limit:.2g})"
    if means[label] <= probe.batch_limit:
        interpretation = "The score of a text does not depend on the texts that are scored with it."
        return CheckResult(BATCH_CHECK, True, procedure, observation, interpretation, is_blocking=True)
    return CheckResult(
        BATCH_CHECK,
        False,
        procedure,
        observation,
        "The score of a text depends on the texts in its batch. Compute statistics, capacities and normalisation per "
        "row, or from the training data.",
        is_blocking=True,
        failure_reason="depends on other rows of the batch",
    )


def _measure_with_other_neighbours(probe: ScoringProbe) -> Tensor:
    """Return the changes when every second row of each batch is replaced.

    Rows keep their place in the batch, because the noise depends on it.
    """
    changes = []
    for batch in probe.batches:
        expected = probe.score(batch)
        replaced = batch.input_ids.clone()
        replaced[1::2] = probe.draw_tokens(batch.input_ids[1::2])
        if batch.attention_mask is not None:
            replaced = torch.where(batch.attention_mask, replaced, batch.input_ids)
        changes.append(measure_changes(probe.score(Batch(replaced, batch.labels, batch.attention_mask)), expected)[::2])
    width = max(change.shape[1] for change in changes)
    return torch.cat([torch.nn.functional.pad(change, (0, width - change.shape[1])) for change in changes])


def check_future(probe: ScoringProbe) -> CheckResult:
    """Check that no loss changes if later tokens in the text are replaced."""
    largest, num_cuts, num_changed, lookahead = 0.0, 0, 0, 0
    limits = torch.clamp(4 * probe.row_noise, min=probe.limit)
    for round_index in range(NUM_CUT_ROUNDS):
        cuts = probe.draw_cuts(round_index)
        for indices in torch.arange(probe.num_rows).split(probe.batch_size):
            expected = probe.score(probe.rows.select(indices)) if probe.is_noisy else probe.reference[indices]
            batch = probe.replace_future(indices, cuts[indices], end_text=round_index == NUM_CUT_ROUNDS - 1)
            losses = probe.score(batch)
            is_before = torch.arange(losses.shape[1]) <= cuts[indices, None]
            change = measure_changes(losses, expected).masked_fill(~is_before, 0.0)
            largest, num_cuts = max(largest, float(change.max())), num_cuts + int((cuts[indices] >= 0).sum())
            is_changed = change > limits[indices, None]
            num_changed += int(is_changed.any(1).sum())
            if is_changed.any():
                distance = cuts[indices, None] - torch.arange(losses.shape[1]) + 1
                lookahead = max(lookahead, int(distance[is_changed].max()))
    procedure = f"tokens after {num_cuts} positions of {probe.num_rows} scored rows replaced, or the text ended there"
    if num_cuts == 0:
        observation = "no scored text contains a token after one to predict"
        return CheckResult(FUTURE_CHECK, True, procedure, observation, "There is no future to read.", is_blocking=True)
    observation = f"earlier tokens change by at most {largest:.2g} nats (limit {probe.limit:.2g})"
    if not num_changed:
        share = 1 - 0.01 ** (1 / num_cuts)
        interpretation = (
            f"Scored tokens depend on earlier tokens only. A leak at {100 * share:.2g} % of the tokens would be found "
            "with a probability of 99 %."
        )
        return CheckResult(FUTURE_CHECK, True, procedure, observation, interpretation, is_blocking=True)
    return CheckResult(
        FUTURE_CHECK,
        False,
        procedure,
        f"{observation}, after {num_changed} of the positions, up to {lookahead} positions before the change",
        "The model sees the tokens that it has to predict: its perplexity measures copying, not prediction.",
        is_blocking=True,
        failure_reason="reads the future",
    )


def check_state(probe: ScoringProbe) -> CheckResult:
    """Check that a text's score does not depend on the texts that were scored before it."""
    limit, changes = probe.batch_limit, {}
    if probe.recorded is not None and not probe.is_noisy:
        losses = probe.reference.sum(1) if probe.target.is_causal else probe.reference[:, 0]
        counts = (probe.rows.labels != IGNORE_INDEX).sum(1) if probe.target.is_causal else torch.ones(probe.num_rows)
        changes["recorded scores"] = measure_changes(losses, probe.recorded) / counts.clamp_min(1)
    first_batch = probe.batches[0]
    fresh = probe.replace_all(first_batch)
    changes["new texts, scored twice"] = measure_changes(probe.score(fresh), probe.score(fresh))
    changes["after other texts"] = measure_changes(probe.score(first_batch), probe.first_losses)
    means = {label: float(change.mean()) for label, change in changes.items()}
    label = max(means, key=lambda name: means[name])
    procedure = f"scored rows compared: {', '.join(changes)}"
    observation = f"{means[label]:.2g} nats per scored token on average ({label}; limit {limit:.2g})"
    if means[label] <= limit:
        interpretation = "The score of a text does not depend on when it is scored."
        return CheckResult(STATE_CHECK, True, procedure, observation, interpretation, is_blocking=True)
    return CheckResult(
        STATE_CHECK,
        False,
        procedure,
        observation,
        "The model keeps something from texts that it has scored, such as a memory, running statistics or the state "
        "of a random generator of its own. Clear it at the start of each forward pass, or change it in training mode "
        "only.",
        is_blocking=True,
        failure_reason="depends on texts that were scored before",
    )


def check_saved(probe: ScoringProbe, rebuild: Callable[[], nn.Module]) -> CheckResult:
    """Check that a new model with the trained weights, as returned by `rebuild`, gives the same scores."""
    model = rebuild().to(probe.device).eval()
    change = float(measure_changes(probe.score(probe.batches[0], model=model), probe.first_losses).mean())
    procedure = "scored rows compared with a new model that has loaded the trained weights"
    observation = f"{change:.2g} nats per scored token on average (limit {probe.batch_limit:.2g})"
    if change <= probe.batch_limit:
        interpretation = "The saved weights are the model that was scored."
        return CheckResult(SAVED_CHECK, True, procedure, observation, interpretation, is_blocking=True)
    return CheckResult(
        SAVED_CHECK,
        False,
        procedure,
        observation,
        "The score depends on values that are not saved with the weights: it cannot be verified, and a resumed run "
        "loses them. Register tensors with register_buffer(), and layers in nn.ModuleList or nn.ModuleDict.",
        is_blocking=True,
        failure_reason="depends on values that are not saved with its weights",
    )


def check_finite(evaluation: Evaluation) -> CheckResult:
    """Check that every recorded loss is finite."""
    losses = torch.as_tensor(evaluation.losses)
    num_nan, num_infinite = int(losses.isnan().sum()), int(losses.isinf().sum())
    procedure = f"recorded losses of {len(losses)} test examples"
    if num_nan + num_infinite == 0:
        return CheckResult(FINITE_CHECK, True, procedure, "all are finite", is_blocking=True)
    outcomes = [f"{count} are {name}" for count, name in ((num_nan, "NaN"), (num_infinite, "infinite")) if count]
    interpretation = (
        "The model gives a test token probability 0, so its perplexity is infinite."
        if num_infinite
        else "The model computes no probability for some test texts, so it has no perplexity."
    )
    return CheckResult(
        FINITE_CHECK,
        False,
        procedure,
        " and ".join(outcomes),
        interpretation,
        is_blocking=True,
        failure_reason="has test losses that are not finite",
    )


def run_scoring_checks(
    probe: ScoringProbe,
    evaluations: Sequence[Evaluation] = (),
    rebuild: Callable[[], nn.Module] | None = None,
) -> list[CheckResult]:
    """Return the results of all checks. A check that raises an exception has no outcome.

    If `rebuild` is given, the scores are also compared with those of the model that it returns.
    """
    checks: dict[str, Callable[[], CheckResult]] = {BATCH_CHECK: lambda: check_batches(probe)}
    if probe.target.is_causal:
        checks[FUTURE_CHECK] = lambda: check_future(probe)
    checks[STATE_CHECK] = lambda: check_state(probe)
    if rebuild is not None:
        checks[SAVED_CHECK] = lambda: check_saved(probe, rebuild)
    results = [check_finite(evaluation) for evaluation in evaluations]
    for name, check in checks.items():
        try:
            results.append(check())
        except Exception as error:  # noqa: BLE001  (a user's network may raise anything)
            interpretation = "The check has no outcome. Change the model so that it scores any batch of test rows."
            results.append(CheckResult(name, None, "", format_model_error(error), interpretation))
    return results
