"""Before training: is the first loss that of a model that knows nothing, and does every weight take part?"""

from __future__ import annotations

import math

from torch import nn
from torch.nn import functional as F

from headtohead.audit.probe import AuditedModel
from headtohead.audit.result import CheckResult, build_not_applicable
from headtohead.config.tasks import Target
from headtohead.data.batches import IGNORE_INDEX, Batch

LOSS_CHECK_NAME, GRADIENT_CHECK_NAME = "initial loss", "gradients"
MAX_LOSS_DEVIATION = 0.5
"""how far the first loss may be from chance, in nats: logits of standard deviation 1 cost as much"""


def audit_untrained_model(
    model: nn.Module, batch: Batch, *, target: Target, vocab_size: int, num_classes: int | None = None, seed: int = 0
) -> list[CheckResult]:
    """Audits that make sense for an untrained model only, on one batch of real text with its labels."""
    context = batch.input_ids.shape[1]
    subject = AuditedModel(
        model,
        target=target,
        vocab_size=vocab_size,
        context=context,
        num_classes=num_classes,
        seed=seed,
        perturb_if_insensitive=False,
    )
    return [audit_initial_loss(subject, batch, vocab_size if num_classes is None else num_classes)]


def audit_initial_loss(audited_model: AuditedModel, batch: Batch, num_choices: int) -> CheckResult:
    """Near ln(number of choices), the loss of an even guess."""
    logits = audited_model.logits(batch.input_ids, batch.attention_mask)
    labels = batch.labels.to(logits.device)
    loss = float(F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORE_INDEX))
    chance = math.log(num_choices)
    tried = f"the loss of {labels.numel()} predictions before any training, against ln({num_choices:,}) = {chance:.3f}"
    found = f"{loss:.3f}, {loss - chance:+.3f} from chance"
    if abs(loss - chance) <= MAX_LOSS_DEVIATION:
        return CheckResult(LOSS_CHECK_NAME, True, tried, found, "The model starts from an even guess, knowing nothing.")
    if loss < chance:
        meaning = "The model knows something before it has seen anything: weights are not new, or labels leak."
        return CheckResult(LOSS_CHECK_NAME, False, tried, found, meaning, failure_reason="starts below chance")
    return CheckResult(
        LOSS_CHECK_NAME,
        False,
        tried,
        found,
        "The model starts out sure of what it cannot know, and its first steps are spent on unlearning that: its "
        "embedding or output is scaled too large. It loses against others over a short training for that alone.",
        failure_reason="starts far from chance",
    )


def audit_gradients(audited_model: AuditedModel) -> CheckResult:
    """Every weight that is to be trained moves the output, in training mode."""
    named = {name: p for name, p in audited_model.model.named_parameters() if p.requires_grad}
    frozen = sum(1 for p in audited_model.model.parameters() if not p.requires_grad)
    if not named:
        return build_not_applicable(GRADIENT_CHECK_NAME, "the model has no weights to train")
    dead = _find_parameters_without_gradient(audited_model)
    if dead:
        # A gate that starts at 0 stops the gradient of what lies behind it for a step; that is no fault.
        still_dead = set(_find_parameters_without_gradient(audited_model.copy_with_perturbed_weights()))
        dead = [name for name in dead if name in still_dead]
    still = f"; {frozen} more are frozen" if frozen else ""
    tried = f"one backward pass from all logits of {len(audited_model.ids)} texts, training mode, {audited_model.how}"
    if not dead:
        found = f"all {len(named)} tensors have a gradient that is not 0{still}"
        return CheckResult(GRADIENT_CHECK_NAME, True, tried, found, "Every weight takes part in training.")
    shown = ", ".join(dead[:4]) + (f" and {len(dead) - 4} more" if len(dead) > 4 else "")
    size = sum(named[name].numel() for name in dead)
    return CheckResult(
        GRADIENT_CHECK_NAME,
        False,
        tried,
        f"{len(dead)} of {len(named)} tensors ({size:,} of {audited_model.parameters:,} weights) have none: {shown}{still}",  # noqa: E501
        "These weights are never trained: the model is smaller than its count of parameters says.",
        failure_reason="weights that are never trained",
    )


def _find_parameters_without_gradient(audited_model: AuditedModel) -> list[str]:
    reached = audited_model.compute_weight_gradients(audited_model.run(audited_model.ids, training=True).logits)
    wanted = [name for name, p in audited_model.model.named_parameters() if p.requires_grad]
    return [name for name in wanted if name not in reached or not bool(reached[name].any())]
