"""Batch composition: does the answer to a row depend on which other rows stand beside it?

It must not when a model is scored: the score would then depend on the size of the batches. In training it may (batch
normalisation does so on purpose); that is said, and takes no verdict away.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from headtohead.audit.probe import Refused, Subject
from headtohead.audit.result import Finding, cannot_be_told
from headtohead.audit.tolerance import Difference, apart, worst

NAME = "batch"


def audit_batch(subject: Subject) -> Finding:
    """A row among other neighbours, in another order, beside padded ones, and alone."""
    if subject.noise == "hidden":
        return cannot_be_told(NAME)
    scored = worst(_scored(subject))
    trained = _trained(subject) if subject.training else None
    modes = "evaluation and training mode" if trained is not None else "evaluation mode"
    tried = f"a row beside other rows, in another order, beside padded rows, and alone; {modes}, {subject.how}"
    if not scored.equal:
        return Finding(
            NAME,
            False,
            tried,
            f"the answer to a row moves with its neighbours: {scored}",
            "The score depends on which rows are scored together, so that it is not a property of the model alone.",
            serious=True,
            reason="depends on its neighbours",
        )
    if trained is not None and not trained.equal:
        return Finding(
            NAME,
            False,
            tried,
            f"in training mode, the answer to a row moves with its neighbours: {trained}; not in evaluation mode",
            "As with batch normalisation, training depends on the size of the batch. Scores do not.",
            reason="depends on its neighbours while training",
        )
    return Finding(
        NAME,
        True,
        tried,
        f"the same answer: {scored}",
        "Each row is answered by itself.",
        serious=True,
    )


def _scored(subject: Subject) -> Iterator[Difference]:
    ids = subject.ids
    whole = subject.logits(ids)
    beside = torch.cat((ids[:1], subject.others(ids[1:])))
    yield apart(subject.logits(beside)[:1], whole[:1], "other neighbours", subject.exact)
    if "attention_mask" in subject.takes:
        mask = torch.ones_like(ids, dtype=torch.bool)
        base = subject.logits(ids, mask)[:1]
        mask[1:, subject.length // 2 + 1 :] = False
        yield apart(subject.logits(beside, mask)[:1], base, "padded neighbours", subject.exact)
    if subject.noise == "none":  # what is drawn may depend on the place in the batch
        turned = subject.logits(ids.flip(0)).flip(0)
        yield apart(turned, whole, "another order", subject.alike)
        try:
            yield apart(subject.logits(ids[1:2]), whole[1:2], "alone", subject.alike)
        except Refused:
            return  # batches of one size only: nothing else to try


def _trained(subject: Subject) -> Difference:
    ids = subject.ids
    whole = subject.logits(ids, training=True)
    beside = torch.cat((ids[:1], subject.others(ids[1:])))
    return apart(subject.logits(beside, training=True)[:1], whole[:1], "other neighbours", subject.exact)
