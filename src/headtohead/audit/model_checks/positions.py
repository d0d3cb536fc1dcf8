"""Two position signals: is a place told to the model twice in the same way?

Signals of different kinds (added to the input, turned into queries and keys, added to the scores) may well be used
together; two that are both added to the input only blur each other. In a transformer of ours each position part is
asked. In a network of the user's own, position tables are looked for by what they do: a tensor of (places, width) is
one if adding to the row of a place does what adding to the embedding of the token there does.
A signal that is computed in forward, without a table, cannot be seen from outside.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from headtohead.audit.probe import Subject
from headtohead.audit.result import Finding, does_not_apply
from headtohead.audit.tolerance import apart
from headtohead.nn.parts.position import Position
from headtohead.nn.transformer import Transformer
from headtohead.pretrained.classifier import FineTuned

NAME = "positions"
PUSH = 0.5


def audit_positions(subject: Subject) -> Finding:
    """At most one signal is added to the input."""
    if isinstance(subject.model, Transformer):
        return _judged(*_of_parts(subject.model, subject.length))
    if isinstance(subject.model, FineTuned):
        return does_not_apply(NAME, "a pretrained model's positions are its own")
    if subject.length < 4 or subject.noise != "none":
        return does_not_apply(NAME, "position tables cannot be told in this model")
    subject = subject.without_restoring()
    with subject.embeddings(subject.ids) as held:
        subject.run(subject.ids)
    if not held:
        return does_not_apply(NAME, "no embedding layer sees the tokens, to hold position tables against")
    tables = [name for name, table in _tables(subject, held[-1].shape[-1]) if _is_added(subject, table)]
    tried = "tensors of (places, width): whether adding to a row does what adding to that place's embedding does"
    return _judged(tables, [], tried)


def _judged(added: list[str], others: list[str], tried: str) -> Finding:
    signals = [*(f"{one} (added to the input)" for one in added), *others]
    found = ", ".join(signals) or "no position signal"
    if len(added) < 2:
        return Finding(NAME, True, tried, found, "No place is told twice in the same way.")
    return Finding(
        NAME,
        False,
        tried,
        f"{len(added)} signals are added to the input: {found}",
        "The two blur each other, and a comparison of positions compares mixtures.",
        reason="two position signals",
    )


def _of_parts(model: Transformer, length: int) -> tuple[list[str], list[str], str]:
    """What each position part really does, whatever it says of itself."""
    dtype = model.embedding.weight.dtype
    at = torch.arange(length, device=model.embedding.weight.device)
    stream = torch.ones(1, length, model.sizes.width, dtype=dtype, device=at.device)
    heads = torch.ones(1, model.sizes.heads, length, model.sizes.head_dim, dtype=dtype, device=at.device)
    added, others = [], []
    with torch.no_grad():
        for part in model.positions:
            assert isinstance(part, Position)
            if not torch.equal(part.embed(stream, at), part.embed(stream, at.flip(0))):
                added.append(part.kind)
            if not torch.equal(part.rotate(heads, at), part.rotate(heads, at.flip(0))):
                others.append(f"{part.kind} (turned into queries and keys)")
            if part.bias(at, at) is not None:
                others.append(f"{part.kind} (added to the scores)")
    return added, others, f"what each of {len(model.positions)} position parts does to {length} places"


def _tables(subject: Subject, width: int) -> Iterator[tuple[str, Tensor]]:
    """Tensors of the right shape: what the user's modules hold themselves, and the tables of embedding layers."""
    seen = set()
    for prefix, module in subject.model.named_modules():
        if type(module).__module__.startswith("torch.nn") and not isinstance(module, nn.Embedding):
            continue
        held = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        for name, tensor in held:
            rows = [size for size in tensor.shape[:-1] if size != 1]
            fits = tensor.is_floating_point() and tensor.dim() > 1 and tensor.shape[-1] == width and len(rows) == 1
            if fits and rows[0] >= subject.length and id(tensor) not in seen:
                seen.add(id(tensor))
                yield f"{prefix}.{name}".replace("inner.", "", 1), tensor


def _is_added(subject: Subject, table: Tensor) -> bool:
    """Does adding to the row of place 0 do to the answer what adding to the embedding of its token does?"""
    ids = subject.ids[:1, : subject.length // 2]
    rows = table.detach().reshape(-1, table.shape[-1])
    ids = ids.masked_fill(ids == 0, 1 if subject.pad_id != 1 else 2)  # no row 0 of a table of tokens is in use
    base = subject.logits(ids)
    push = PUSH * torch.linspace(-1, 1, rows.shape[1], dtype=rows.dtype, device=rows.device).cos()
    with _pushed(rows[:1], push):
        moved = subject.logits(ids)
    if torch.equal(moved, base):
        return False
    # The first transformer scales the embedding by sqrt(width) before positions are added.
    for factor in (1.0, 1 / math.sqrt(rows.shape[1])):
        with _pushed_embedding(subject, ids, factor * push):
            told = subject.logits(ids)
        if apart(told, moved, "", subject.alike).equal:
            return True
    return False


@contextmanager
def _pushed(rows: Tensor, push: Tensor) -> Iterator[None]:
    was = rows.clone()
    rows.add_(push)
    try:
        yield
    finally:
        rows.copy_(was)


@contextmanager
def _pushed_embedding(subject: Subject, ids: Tensor, push: Tensor) -> Iterator[None]:
    """Add to the embedding of the first token."""

    def add(_module: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> Tensor:
        if given[0].shape != ids.shape or not torch.equal(given[0], ids):
            return out
        return torch.cat((out[:, :1] + push, out[:, 1:]), dim=1)

    hooks = [m.register_forward_hook(add) for m in subject.model.modules() if isinstance(m, nn.Embedding)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
