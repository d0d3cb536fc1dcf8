"""Every audit of a model, in the order in which they matter."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from headtohead.audit.model_checks.attention_impl import audit_roads
from headtohead.audit.model_checks.attention_weights import audit_maps
from headtohead.audit.model_checks.batch import audit_batch
from headtohead.audit.model_checks.causality import audit_causality
from headtohead.audit.model_checks.determinism import audit_repeatable
from headtohead.audit.model_checks.initialization import audit_gradients
from headtohead.audit.model_checks.kv_cache import audit_cache
from headtohead.audit.model_checks.padding import audit_padding
from headtohead.audit.model_checks.positions import audit_positions
from headtohead.audit.probe import Ids, Refused, Subject
from headtohead.audit.result import Finding, does_not_apply

AUDITS: dict[str, Callable[[Subject], Finding]] = {
    "causality": audit_causality,
    "batch": audit_batch,
    "repeatable": audit_repeatable,
    "padding": audit_padding,
    "roads": audit_roads,
    "cache": audit_cache,
    "attention rows": audit_maps,
    "positions": audit_positions,
    "gradients": audit_gradients,
}
"""by the name of what they find"""


def audit_model(
    model: nn.Module,
    *,
    task: str,
    vocab: int,
    context: int,
    classes: int | None = None,
    pad_id: int | None = None,
    ids: Ids | None = None,
    training: bool = True,
    seed: int = 0,
) -> list[Finding]:
    """Audit any model: ours, a pretrained one, a user's own behind the protocol, or a bare nn.Module.

    The model is not disturbed: everything is tried on a copy. `ids` are texts to try it with, drawn at random unless
    given; `pad_id` is the padding token, for networks that know padding by it. With `training` the laws are tried in
    training mode as well, not only as the model is scored.
    """
    subject = Subject(
        model,
        task=task,
        vocab=vocab,
        context=context,
        classes=classes,
        pad_id=pad_id,
        ids=ids,
        training=training,
        seed=seed,
    )
    if subject.logits(subject.ids).isnan().any():
        return [_no_numbers(subject)]
    return [_found(name, subject) for name in AUDITS]


def _found(name: str, subject: Subject) -> Finding:
    try:
        return AUDITS[name](subject)
    except Refused as refusal:
        return does_not_apply(name, f"the model does not take what had to be tried: {refusal}")


def _no_numbers(subject: Subject) -> Finding:
    return Finding(
        "numbers",
        False,
        f"a pass over {len(subject.ids)} texts of {subject.length}; {subject.how}",
        "some logits are no number (NaN)",
        "The model has come apart: nothing that it scores means anything, and no other audit was made.",
        serious=True,
        reason="gives no numbers",
    )
