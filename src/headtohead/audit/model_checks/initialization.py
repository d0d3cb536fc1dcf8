"""Before training: is the first loss that of a model that knows nothing, and does every weight take part?"""

from __future__ import annotations

import math

from torch import nn
from torch.nn import functional as F

from headtohead.audit.probe import Subject
from headtohead.audit.result import Finding, does_not_apply
from headtohead.data.batches import IGNORED, Batch

LOSS, GRADIENTS = "initial loss", "gradients"
FAR = 0.5
"""how far the first loss may be from chance, in nats: logits of standard deviation 1 cost as much"""


def audit_start(
    model: nn.Module, batch: Batch, *, task: str, vocab: int, classes: int | None = None, seed: int = 0
) -> list[Finding]:
    """Audits that make sense for an untrained model only, on one batch of real text with its labels."""
    context = batch.input_ids.shape[1]
    subject = Subject(model, task=task, vocab=vocab, context=context, classes=classes, seed=seed, wake=False)
    return [audit_initial_loss(subject, batch, vocab if classes is None else classes)]


def audit_initial_loss(subject: Subject, batch: Batch, choices: int) -> Finding:
    """Near ln(number of choices), the loss of an even guess."""
    logits = subject.logits(batch.input_ids, batch.attention_mask)
    labels = batch.labels.to(logits.device)
    loss = float(F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORED))
    chance = math.log(choices)
    tried = f"the loss of {labels.numel()} predictions before any training, against ln({choices:,}) = {chance:.3f}"
    found = f"{loss:.3f}, {loss - chance:+.3f} from chance"
    if abs(loss - chance) <= FAR:
        return Finding(LOSS, True, tried, found, "The model starts from an even guess, knowing nothing.")
    if loss < chance:
        meaning = "The model knows something before it has seen anything: weights are not new, or labels leak."
        return Finding(LOSS, False, tried, found, meaning, reason="starts below chance")
    return Finding(
        LOSS,
        False,
        tried,
        found,
        "The model starts out sure of what it cannot know, and its first steps are spent on unlearning that: its "
        "embedding or output is scaled too large. It loses against others over a short training for that alone.",
        reason="starts far from chance",
    )


def audit_gradients(subject: Subject) -> Finding:
    """Every weight that is to be trained moves the output, in training mode."""
    named = {name: p for name, p in subject.model.named_parameters() if p.requires_grad}
    frozen = sum(1 for p in subject.model.parameters() if not p.requires_grad)
    if not named:
        return does_not_apply(GRADIENTS, "the model has no weights to train")
    dead = _unreached(subject)
    if dead:
        # A gate that starts at 0 stops the gradient of what lies behind it for a step; that is no fault.
        still_dead = set(_unreached(subject.nudged()))
        dead = [name for name in dead if name in still_dead]
    still = f"; {frozen} more are frozen" if frozen else ""
    tried = f"one backward pass from all logits of {len(subject.ids)} texts, training mode, {subject.how}"
    if not dead:
        found = f"all {len(named)} tensors have a gradient that is not 0{still}"
        return Finding(GRADIENTS, True, tried, found, "Every weight takes part in training.")
    shown = ", ".join(dead[:4]) + (f" and {len(dead) - 4} more" if len(dead) > 4 else "")
    size = sum(named[name].numel() for name in dead)
    return Finding(
        GRADIENTS,
        False,
        tried,
        f"{len(dead)} of {len(named)} tensors ({size:,} of {subject.parameters:,} weights) have none: {shown}{still}",
        "These weights are never trained: the model is smaller than its count of parameters says.",
        reason="weights that are never trained",
    )


def _unreached(subject: Subject) -> list[str]:
    reached = subject.weight_gradients(subject.run(subject.ids, training=True).logits)
    wanted = [name for name, p in subject.model.named_parameters() if p.requires_grad]
    return [name for name in wanted if name not in reached or not bool(reached[name].any())]
