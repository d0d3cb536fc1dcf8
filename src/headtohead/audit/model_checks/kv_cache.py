"""Cached against full: does decoding with a cache say what one pass over the whole text says?

Scores are taken in full passes, so that a wrong cache spoils samples and not scores: no verdict is taken away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from headtohead.audit.probe import Mask, Refused, Subject
from headtohead.audit.result import Finding, cannot_be_told, does_not_apply
from headtohead.audit.tolerance import Difference, apart, largest, worst
from headtohead.nn.kv_cache import Cache
from headtohead.nn.transformer import Transformer

NAME = "cache"
STEPS = 8
"""so many tokens are decoded one by one"""


def audit_cache(subject: Subject) -> Finding:
    """Token by token, in pieces, and with prompts of different length padded on the left."""
    model = subject.model
    if not subject.decoder or not isinstance(model, Transformer):
        return does_not_apply(NAME, "the model has no cache" if subject.decoder else "a classifier does not decode")
    if subject.length < 3:
        return does_not_apply(NAME, f"a text of {subject.length} leaves nothing to decode")
    if subject.noise == "hidden":
        return cannot_be_told(NAME)
    tried = f"a prompt and {STEPS} tokens one by one, a text in two pieces, prompts padded on the left; {subject.how}"
    try:
        found = worst(_measured(subject, len(model.layers)))
    except Refused as refusal:
        return Finding(NAME, False, tried, f"a pass with a cache fails: {refusal}", _MEANING, reason="its cache fails")
    if found.equal:
        meaning = "Samples are written by the model that is scored."
        return Finding(NAME, True, tried, f"as in a full pass: {found}", meaning)
    if subject.noise == "drawn":
        return cannot_be_told(NAME)
    said = f"decoding with a cache differs from a full pass: {found}"
    return Finding(NAME, False, tried, said, _MEANING, reason="its cache differs")


_MEANING = "Samples written with the cache are not what the model says. Scores, taken in full passes, are not affected."


def _measured(subject: Subject, layers: int) -> Iterator[Difference]:
    ids = subject.ids[:2]
    length = ids.shape[1]
    whole = subject.logits(ids)
    steps = min(STEPS, length - 1)
    for pieces in ([length - steps] + [1] * steps, [length // 2, length - length // 2]):
        said = f"a prompt of {pieces[0]}, then {len(pieces) - 1} {'pieces' if len(pieces) > 2 else 'piece'}"
        yield apart(in_pieces(subject, ids, pieces, layers), whole, said, subject.alike)
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[1, : length // 3] = False
    padded = subject.logits(ids, mask)
    pieces = [length - 2, 1, 1]
    scale = largest(padded[mask])
    cached = in_pieces(subject, ids, pieces, layers, mask)
    yield apart(cached[mask], padded[mask], "prompts padded on the left", subject.alike, scale=scale)


def in_pieces(subject: Subject, ids: Tensor, pieces: Sequence[int], layers: int, mask: Mask | None = None) -> Tensor:
    """The logits, computed piece by piece with a cache."""
    assert sum(pieces) == ids.shape[1]
    store, start, said = Cache(layers), 0, []
    for size in pieces:
        part = slice(start, start + size)
        said.append(subject.logits(ids[:, part], None if mask is None else mask[:, part], cache=store))
        start += size
    return torch.cat(said, dim=1)
