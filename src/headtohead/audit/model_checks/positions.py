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

from headtohead.audit.probe import AuditedModel
from headtohead.audit.result import CheckResult, build_not_applicable
from headtohead.audit.tolerance import measure_difference
from headtohead.nn.parts.position import Position
from headtohead.nn.transformer import Transformer
from headtohead.pretrained.classifier import EncoderClassifier

CHECK_NAME = "position-signals"
PERTURBATION_SIZE = 0.5


def audit_position_signals(audited_model: AuditedModel) -> CheckResult:
    """At most one signal is added to the input."""
    if isinstance(audited_model.model, Transformer):
        return _build_result(*_find_signals_in_parts(audited_model.model, audited_model.length))
    if isinstance(audited_model.model, EncoderClassifier):
        return build_not_applicable(CHECK_NAME, "a pretrained model's positions are its own")
    if audited_model.length < 4 or audited_model.noise != "none":
        return build_not_applicable(CHECK_NAME, "position tables cannot be told in this model")
    audited_model = audited_model.copy_without_buffer_restore()
    with audited_model.capture_embeddings(audited_model.ids) as held:
        audited_model.run(audited_model.ids)
    if not held:
        return build_not_applicable(CHECK_NAME, "no embedding layer sees the tokens, to hold position tables against")
    tables = [
        name
        for name, table in _find_position_tables(audited_model, held[-1].shape[-1])
        if _is_added_to_embedding(audited_model, table)
    ]
    tried = "tensors of (places, width): whether adding to a row does what adding to that place's embedding does"
    return _build_result(tables, [], tried)


def _build_result(input_signals: list[str], other_signals: list[str], procedure: str) -> CheckResult:
    signals = [*(f"{one} (added to the input)" for one in input_signals), *other_signals]
    found = ", ".join(signals) or "no position signal"
    if len(input_signals) < 2:
        return CheckResult(CHECK_NAME, True, procedure, found, "No place is told twice in the same way.")
    return CheckResult(
        CHECK_NAME,
        False,
        procedure,
        f"{len(input_signals)} signals are added to the input: {found}",
        "The two blur each other, and a comparison of positions compares mixtures.",
        failure_reason="two position signals",
    )


def _find_signals_in_parts(model: Transformer, length: int) -> tuple[list[str], list[str], str]:
    """What each position part really does, whatever it says of itself."""
    dtype = model.embedding.weight.dtype
    at = torch.arange(length, device=model.embedding.weight.device)
    stream = torch.ones(1, length, model.sizes.width, dtype=dtype, device=at.device)
    heads = torch.ones(1, model.sizes.heads, length, model.sizes.head_dim, dtype=dtype, device=at.device)
    added, others = [], []
    with torch.no_grad():
        for part in model.positions:
            assert isinstance(part, Position)
            if not torch.equal(part.add_positions(stream, at), part.add_positions(stream, at.flip(0))):
                added.append(part.kind)
            if not torch.equal(part.rotate(heads, at), part.rotate(heads, at.flip(0))):
                others.append(f"{part.kind} (turned into queries and keys)")
            if part.compute_bias(at, at) is not None:
                others.append(f"{part.kind} (added to the scores)")
    return added, others, f"what each of {len(model.positions)} position parts does to {length} places"


def _find_position_tables(audited_model: AuditedModel, width: int) -> Iterator[tuple[str, Tensor]]:
    """Tensors of the right shape: what the user's modules hold themselves, and the tables of embedding layers."""
    seen = set()
    for prefix, module in audited_model.model.named_modules():
        if type(module).__module__.startswith("torch.nn") and not isinstance(module, nn.Embedding):
            continue
        held = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        for name, tensor in held:
            rows = [size for size in tensor.shape[:-1] if size != 1]
            fits = tensor.is_floating_point() and tensor.dim() > 1 and tensor.shape[-1] == width and len(rows) == 1
            if fits and rows[0] >= audited_model.length and id(tensor) not in seen:
                seen.add(id(tensor))
                yield f"{prefix}.{name}".replace("inner.", "", 1), tensor


def _is_added_to_embedding(audited_model: AuditedModel, table: Tensor) -> bool:
    """Does adding to the row of place 0 do to the answer what adding to the embedding of its token does?"""
    ids = audited_model.ids[:1, : audited_model.length // 2]
    rows = table.detach().reshape(-1, table.shape[-1])
    ids = ids.masked_fill(ids == 0, 1 if audited_model.pad_id != 1 else 2)  # no row 0 of a table of tokens is in use
    base = audited_model.logits(ids)
    push = PERTURBATION_SIZE * torch.linspace(-1, 1, rows.shape[1], dtype=rows.dtype, device=rows.device).cos()
    with _perturb_rows(rows[:1], push):
        moved = audited_model.logits(ids)
    if torch.equal(moved, base):
        return False
    # The first transformer scales the embedding by sqrt(width) before positions are added.
    for factor in (1.0, 1 / math.sqrt(rows.shape[1])):
        with _perturb_first_embedding(audited_model, ids, factor * push):
            told = audited_model.logits(ids)
        if measure_difference(told, moved, "", audited_model.rounding_tolerance).equal:
            return True
    return False


@contextmanager
def _perturb_rows(rows: Tensor, perturbation: Tensor) -> Iterator[None]:
    was = rows.clone()
    rows.add_(perturbation)
    try:
        yield
    finally:
        rows.copy_(was)


@contextmanager
def _perturb_first_embedding(audited_model: AuditedModel, input_ids: Tensor, perturbation: Tensor) -> Iterator[None]:
    """Add to the embedding of the first token."""

    def add(_module: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> Tensor:
        if given[0].shape != input_ids.shape or not torch.equal(given[0], input_ids):
            return out
        return torch.cat((out[:, :1] + perturbation, out[:, 1:]), dim=1)

    hooks = [m.register_forward_hook(add) for m in audited_model.model.modules() if isinstance(m, nn.Embedding)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
