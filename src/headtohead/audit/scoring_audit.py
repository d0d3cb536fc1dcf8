"""Audit a model's scores with the live model, right after its final scoring.

A sample of the scored rows is rescored with the trial's device, precision and objective: with later tokens replaced, in
different batches, and after different texts. Every change is measured in nats on the scored tokens, against a limit
that is fixed in advance. A model's random numbers come from a fixed RNG state, so that noise is not mistaken for a
violation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from headtohead.audit.forbidden_code import copy_trainable_weights, list_weights_changed_by_forward
from headtohead.audit.rescoring import ModelRescorer, measure_loss_changes
from headtohead.audit.result import CheckResult
from headtohead.audit.user_code import format_model_error
from headtohead.data.batches import IGNORE_INDEX, Batch
from headtohead.training.task_objectives.evaluation_pass import Evaluation

NUM_CUT_ROUNDS = 4
"""positions of each row after which the future is replaced; the first is the token with the lowest loss"""
CAUSALITY_CHECK_NAME = "scored-causality"
BATCHES_CHECK_NAME = "scored-batches"
ORDER_CHECK_NAME = "scored-order"
WEIGHTS_CHECK_NAME = "scored-weights"
FINITE_CHECK_NAME = "finite-scores"
PREDICTED_TOKEN_CHECK_NAME = "predicted-token"
MIN_OFFSET_NATS = 0.3
MIN_OFFSET_STANDARD_ERRORS = 4.0
"""a model predicts a different token than the next if that token's mean loss is lower by more than both limits"""


def check_scored_batches(rescorer: ModelRescorer) -> CheckResult:
    """Check that a row's score depends neither on the rest of its batch nor on the order of the rows."""
    mean_changes: dict[str, float] = {}
    unsupported_batches = []
    if rescorer.is_noisy:
        changes = _measure_with_other_neighbors(rescorer)
        mean_changes["other neighbors"] = float(changes.sum()) / rescorer.count_predictions(slice(None))
    else:
        shuffled_indices = torch.randperm(rescorer.num_rows, generator=rescorer.generator)
        half = max(1, rescorer.batch_size // 2)
        for label, row_indices, batch_size in (
            ("other neighbors and order", shuffled_indices, rescorer.batch_size),
            (f"batches of {half}", shuffled_indices[: rescorer.batch_size], half),
        ):
            try:
                losses = rescorer.compute_row_losses(row_indices, batch_size)
                changes = measure_loss_changes(losses, rescorer.reference_losses[row_indices])
            except Exception as error:  # noqa: BLE001  (a user's network may raise anything)
                unsupported_batches.append(f"{label}: {format_model_error(error)}")
                continue
            mean_changes[label] = float(changes.sum()) / rescorer.count_predictions(row_indices)
            rescorer.row_noise[row_indices] = torch.maximum(rescorer.row_noise[row_indices], changes.amax(1))
        if not mean_changes:
            raise ValueError(
                f"the model scores no other batches than the original ones: {'; '.join(unsupported_batches)}"
            )
    label = max(mean_changes, key=lambda name: mean_changes[name])
    procedure = f"{rescorer.num_rows} scored rows with {', '.join(mean_changes)}"
    procedure += f"; not supported by the model: {'; '.join(unsupported_batches)}" if unsupported_batches else ""
    observation = (
        f"{mean_changes[label]:.2g} nats per scored token on average ({label}; limit {rescorer.batch_change_limit:.2g})"
    )
    if mean_changes[label] <= rescorer.batch_change_limit:
        interpretation = "The score of a text does not depend on the texts that are scored with it."
        return CheckResult(BATCHES_CHECK_NAME, True, procedure, observation, interpretation, is_blocking=True)
    return CheckResult(
        BATCHES_CHECK_NAME,
        False,
        procedure,
        observation,
        "The score of a text depends on the texts in its batch. Compute statistics, capacities and normalization per "
        "row, or from the training data.",
        is_blocking=True,
        failure_reason="depends on other rows of the batch",
    )


def _measure_with_other_neighbors(rescorer: ModelRescorer) -> Tensor:
    """Return the changes of scored losses, (rows, positions), when every second row of each batch is replaced.

    Rows stay in their place in the batch, because the random numbers of a noisy model depend on it.
    """
    changes = []
    for batch in rescorer.batches:
        expected = rescorer.compute_losses(batch)
        replaced_ids = batch.input_ids.clone()
        replaced_ids[1::2] = rescorer.draw_replacement_tokens(batch.input_ids[1::2])
        if batch.attention_mask is not None:
            replaced_ids = torch.where(batch.attention_mask, replaced_ids, batch.input_ids)
        changes.append(
            measure_loss_changes(
                rescorer.compute_losses(Batch(replaced_ids, batch.labels, batch.attention_mask)), expected
            )[::2]
        )
    width = max(change.shape[1] for change in changes)
    return torch.cat([torch.nn.functional.pad(change, (0, width - change.shape[1])) for change in changes])


def check_scored_causality(rescorer: ModelRescorer) -> CheckResult:
    """Check that no scored token's loss changes if later tokens of its row are replaced."""
    largest_change, num_cuts, num_changed_cuts, lookahead = 0.0, 0, 0, 0
    limits = torch.clamp(4 * rescorer.row_noise, min=rescorer.token_change_limit)
    for round_index in range(NUM_CUT_ROUNDS):
        cuts = rescorer.draw_cut_positions(round_index)
        for indices in torch.arange(rescorer.num_rows).split(rescorer.batch_size):
            expected = (
                rescorer.compute_losses(rescorer.rows.select(indices))
                if rescorer.is_noisy
                else rescorer.reference_losses[indices]
            )
            batch = rescorer.replace_future(indices, cuts[indices], end_sequence=round_index == NUM_CUT_ROUNDS - 1)
            losses = rescorer.compute_losses(batch)
            is_before = torch.arange(losses.shape[1]) <= cuts[indices, None]
            changes = measure_loss_changes(losses, expected).masked_fill(~is_before, 0.0)
            largest_change = max(largest_change, float(changes.max()))
            num_cuts += int((cuts[indices] >= 0).sum())
            is_changed = changes > limits[indices, None]
            num_changed_cuts += int(is_changed.any(1).sum())
            if is_changed.any():
                distance = cuts[indices, None] - torch.arange(losses.shape[1]) + 1
                lookahead = max(lookahead, int(distance[is_changed].max()))
    procedure = (
        f"tokens after {num_cuts} positions of {rescorer.num_rows} scored rows replaced, or the text ended there"
    )
    if num_cuts == 0:
        observation = "no scored text contains a token after one to predict"
        return CheckResult(
            CAUSALITY_CHECK_NAME, True, procedure, observation, "There is no future to read.", is_blocking=True
        )
    observation = (
        f"earlier tokens change by at most {largest_change:.2g} nats (limit {rescorer.token_change_limit:.2g})"
    )
    if not num_changed_cuts:
        detectable_share = 1 - 0.01 ** (1 / num_cuts)
        interpretation = (
            "Scored tokens depend on earlier tokens only. A leak at "
            f"{100 * detectable_share:.2g} % of the tokens would be found with a probability of 99 %."
        )
        return CheckResult(CAUSALITY_CHECK_NAME, True, procedure, observation, interpretation, is_blocking=True)
    return CheckResult(
        CAUSALITY_CHECK_NAME,
        False,
        procedure,
        f"{observation}, after {num_changed_cuts} of the positions, up to {lookahead} positions before the change",
        "The model sees the tokens that it has to predict: its perplexity measures copying, not prediction.",
        is_blocking=True,
        failure_reason="reads the future",
    )


def check_scored_order(rescorer: ModelRescorer) -> CheckResult:
    """Check that a text's score does not depend on the texts that were scored before it."""
    limit = rescorer.batch_change_limit
    changes: dict[str, Tensor] = {}
    if rescorer.recorded_losses is not None and not rescorer.is_noisy:
        losses = rescorer.reference_losses.sum(1) if rescorer.target.is_causal else rescorer.reference_losses[:, 0]
        counts = (
            (rescorer.rows.labels != IGNORE_INDEX).sum(1)
            if rescorer.target.is_causal
            else torch.ones(rescorer.num_rows)
        )
        changes["recorded scores"] = measure_loss_changes(losses, rescorer.recorded_losses) / counts.clamp_min(1)
    first_batch = rescorer.batches[0]
    new_batch = rescorer.replace_all_tokens(first_batch)
    changes["new texts, scored twice"] = measure_loss_changes(
        rescorer.compute_losses(new_batch), rescorer.compute_losses(new_batch)
    )
    changes["after other texts"] = measure_loss_changes(
        rescorer.compute_losses(first_batch), rescorer.first_batch_losses
    )
    mean_changes = {label: float(change.mean()) for label, change in changes.items()}
    label = max(mean_changes, key=lambda name: mean_changes[name])
    procedure = f"scored rows compared: {', '.join(changes)}"
    observation = f"{mean_changes[label]:.2g} nats per scored token on average ({label}; limit {limit:.2g})"
    if mean_changes[label] <= limit:
        interpretation = "The score of a text does not depend on when it is scored."
        return CheckResult(ORDER_CHECK_NAME, True, procedure, observation, interpretation, is_blocking=True)
    return CheckResult(
        ORDER_CHECK_NAME,
        False,
        procedure,
        observation,
        "The model keeps something from texts that it has scored, such as a memory, running statistics or the state "
        "of a random generator of its own. Clear it at the start of each forward pass, or change it in training mode "
        "only.",
        is_blocking=True,
        failure_reason="depends on texts that were scored before",
    )


def check_scored_weights(rescorer: ModelRescorer, rebuild: Callable[[], nn.Module]) -> CheckResult:
    """Check that a new model with the saved weights gives the same scores, and that scoring changes no weights.

    `rebuild` returns that model.
    """
    model = rebuild().to(rescorer.device).eval()
    weights = copy_trainable_weights(model)
    losses = rescorer.compute_losses(rescorer.batches[0], model=model)
    mean_change = float(measure_loss_changes(losses, rescorer.first_batch_losses).mean())
    rescorer.compute_losses(rescorer.batches[0])
    changed_names = list_weights_changed_by_forward(rescorer.model, weights)
    procedure = "scored rows compared with a new model that has loaded the trained weights, and weights after a pass"
    observation = f"{mean_change:.2g} nats per scored token on average (limit {rescorer.batch_change_limit:.2g})"
    if mean_change <= rescorer.batch_change_limit and not changed_names:
        interpretation = "The saved weights are the model that was scored."
        return CheckResult(WEIGHTS_CHECK_NAME, True, procedure, observation, interpretation, is_blocking=True)
    if changed_names:
        interpretation = (
            "The model is trained on the texts that it is scored on, outside the optimizer of the experiment file. "
            "Remove the update from its forward pass."
        )
        observation = (
            f"a forward pass in evaluation mode changes {changed_names[0].removeprefix('inner.')}; {observation}"
        )
        reason = "changes its weights while it is scored"
    else:
        interpretation = (
            "The score depends on values that are not saved with the weights: it cannot be verified, and a resumed run "
            "loses them. Register tensors with register_buffer(), and layers in nn.ModuleList or nn.ModuleDict."
        )
        reason = "depends on values that are not saved with its weights"
    return CheckResult(
        WEIGHTS_CHECK_NAME, False, procedure, observation, interpretation, is_blocking=True, failure_reason=reason
    )


def check_predicted_token(rescorer: ModelRescorer) -> CheckResult:
    """Check that the model predicts the next token rather than the current one or the one after the next."""
    batch, losses = rescorer.batches[0], rescorer.first_batch_losses
    labels_ahead = torch.nn.functional.pad(batch.labels[:, 1:], (0, 1), value=IGNORE_INDEX)
    current_ids = batch.input_ids.masked_fill(batch.labels == IGNORE_INDEX, IGNORE_INDEX)
    max_other_loss = math.log(max(2, len(rescorer.content_token_ids)))
    gaps = {}
    for token, other_labels in (("the current token", current_ids), ("the token after the next", labels_ahead)):
        is_compared = (other_labels != IGNORE_INDEX) & (batch.labels != IGNORE_INDEX)
        other_losses = rescorer.compute_losses(replace(batch, labels=other_labels))
        if float(other_losses[is_compared].mean()) < max_other_loss:  # otherwise, it predicts neither token
            gaps[token] = (losses - other_losses)[is_compared]
    procedure = f"losses of three tokens at each position of {len(losses)} scored rows"
    for token, gap in gaps.items():
        mean_gap = float(gap.mean())
        if mean_gap > max(MIN_OFFSET_NATS, MIN_OFFSET_STANDARD_ERRORS * float(gap.std()) / max(1, len(gap)) ** 0.5):
            return CheckResult(
                PREDICTED_TOKEN_CHECK_NAME,
                False,
                procedure,
                f"the loss of {token} is {mean_gap:.2f} nats below that of the next token",
                f"The model is trained to predict {token}. Labels are already shifted by one position: a loss must "
                "compare logits[:, t] with labels[:, t].",
                failure_reason=f"predicts {token}",
            )
    interpretation = "The next token has the lowest loss."
    return CheckResult(PREDICTED_TOKEN_CHECK_NAME, True, procedure, "", interpretation)


def check_finite_scores(evaluation: Evaluation) -> CheckResult:
    """Check that every recorded loss is finite."""
    losses = torch.as_tensor(evaluation.losses)
    num_nan, num_infinite = int(losses.isnan().sum()), int(losses.isinf().sum())
    procedure = f"recorded losses of {len(losses)} test examples"
    if num_nan + num_infinite == 0:
        return CheckResult(FINITE_CHECK_NAME, True, procedure, "all are finite", is_blocking=True)
    counts = [f"{count} are {kind}" for count, kind in ((num_nan, "NaN"), (num_infinite, "infinite")) if count]
    interpretation = (
        "The model gives a test token probability 0, so its perplexity is infinite."
        if num_infinite
        else "The model computes no probability for some test texts, so it has no perplexity."
    )
    return CheckResult(
        FINITE_CHECK_NAME,
        False,
        procedure,
        " and ".join(counts),
        interpretation,
        is_blocking=True,
        failure_reason="has test losses that are not finite",
    )


def run_scoring_checks(
    rescorer: ModelRescorer,
    evaluations: Sequence[Evaluation] = (),
    rebuild: Callable[[], nn.Module] | None = None,
) -> list[CheckResult]:
    """Return the results of all checks of a model's scores. A check that raises an exception has no outcome.

    If `rebuild` is given, the scores are also compared with those of the model that it returns.
    """
    checks: dict[str, Callable[[], CheckResult]] = {BATCHES_CHECK_NAME: lambda: check_scored_batches(rescorer)}
    if rescorer.target.is_causal:
        checks[CAUSALITY_CHECK_NAME] = lambda: check_scored_causality(rescorer)
        checks[PREDICTED_TOKEN_CHECK_NAME] = lambda: check_predicted_token(rescorer)
    checks[ORDER_CHECK_NAME] = lambda: check_scored_order(rescorer)
    if rebuild is not None:
        checks[WEIGHTS_CHECK_NAME] = lambda: check_scored_weights(rescorer, rebuild)
    results = [check_finite_scores(evaluation) for evaluation in evaluations]
    for name, check in checks.items():
        try:
            results.append(check())
        except Exception as error:  # noqa: BLE001  (a user's network may raise anything)
            interpretation = "The check has no outcome. Change the model so that it scores any batch of test rows."
            results.append(CheckResult(name, None, "", format_model_error(error), interpretation))
    return results
