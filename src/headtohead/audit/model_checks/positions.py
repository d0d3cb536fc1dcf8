"""Position embeddings: at most one position signal may be added to the input.

Signals of different kinds (added to the input, rotating queries and keys, added to the attention scores) combine well;
two that are added to the input overlap. Each position part of a Transformer is tested directly. In other networks,
position embedding tables are recognized by their effect: a tensor (positions, width) is one if adding a vector to a
position's row has the same effect as adding it to the token embedding at that position. Signals that forward computes
without a table cannot be detected.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from headtohead.audit.audited_model import AuditedModel
from headtohead.audit.result import CheckResult, build_inapplicable_result
from headtohead.audit.tolerance import measure_tensor_difference
from headtohead.nn.parts.context import ForwardContext
from headtohead.nn.parts.position import Position
from headtohead.nn.transformer import Transformer
from headtohead.pretrained.classifier import EncoderClassifier

CHECK_NAME = "position-signals"
PERTURBATION_SIZE = 0.5


def check_position_signals(audited_model: AuditedModel) -> CheckResult:
    """Check that at most one position signal is added to the input."""
    if isinstance(audited_model.model, Transformer):
        return _build_signals_result(*_find_signals_of_position_parts(audited_model.model, audited_model.input_length))
    if isinstance(audited_model.model, EncoderClassifier):
        return build_inapplicable_result(CHECK_NAME, "the model is pretrained")
    if audited_model.input_length < 4 or audited_model.nondeterminism != "none":
        return build_inapplicable_result(CHECK_NAME, "position tables cannot be detected in this model")
    audited_model = audited_model.copy_without_buffer_restore()  # a position table may be a buffer
    with audited_model.capture_embeddings(audited_model.input_ids) as embeddings:
        audited_model.run_forward(audited_model.input_ids)
    if not embeddings:
        return build_inapplicable_result(CHECK_NAME, "no embedding layer receives the token ids")
    table_names = [
        name
        for name, table in _find_position_table_candidates(audited_model, embeddings[-1].shape[-1])
        if _is_added_to_embedding(audited_model, table)
    ]
    procedure = "tensors (positions, width): whether adding to a row equals adding to the token embedding there"
    return _build_signals_result(table_names, [], procedure)


def _build_signals_result(input_signals: list[str], other_signals: list[str], procedure: str) -> CheckResult:
    """Return the result of the check; it fails if more than one position signal is added to the input."""
    signals = [*(f"{name} (added to the input)" for name in input_signals), *other_signals]
    observation = ", ".join(signals) or "no position signal"
    if len(input_signals) < 2:
        interpretation = "At most one position signal is added to the input."
        return CheckResult(CHECK_NAME, True, procedure, observation, interpretation)
    return CheckResult(
        CHECK_NAME,
        False,
        procedure,
        f"{len(input_signals)} signals are added to the input: {observation}",
        "The signals overlap, so a comparison of position parts compares mixtures.",
        failure_reason="two position signals",
    )


def _find_signals_of_position_parts(model: Transformer, length: int) -> tuple[list[str], list[str], str]:
    """Return the signals that position parts add to the input, any further signals, and the procedure used."""
    parameter = next(model.parameters())
    positions = torch.arange(length, device=parameter.device)
    hidden_states = parameter.new_ones(1, length, model.sizes.width)
    head_states = parameter.new_ones(1, model.sizes.heads, length, model.sizes.head_dim)
    ids = torch.zeros(1, length, dtype=torch.long, device=positions.device)
    context, reversed_context = (
        ForwardContext.create(ids, positions=position_ids) for position_ids in (positions, positions.flip(0))
    )
    input_signals, other_signals = [], []
    with torch.no_grad():
        for part in model.positions:
            assert isinstance(part, Position)
            if not torch.equal(
                part.add_positions(hidden_states, context), part.add_positions(hidden_states, reversed_context)
            ):
                input_signals.append(part.kind)
            rotated, reversed_rotated = (part.rotate(head_states, head_states, c) for c in (context, reversed_context))
            if not all(map(torch.equal, rotated, reversed_rotated)):
                other_signals.append(f"{part.kind} (rotates queries and keys)")
            if part.compute_bias(positions, positions, context) is not None:
                other_signals.append(f"{part.kind} (added to the attention scores)")
    return input_signals, other_signals, f"effect of {len(model.positions)} position parts on {length} positions"


def _find_position_table_candidates(audited_model: AuditedModel, width: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the name and tensor of each possible position embedding table, judged by its shape (positions, width).

    Candidates are tensors of user modules and embedding layers.
    """
    yielded_ids = set()
    for prefix, module in audited_model.model.named_modules():
        if type(module).__module__.startswith("torch.nn") and not isinstance(module, nn.Embedding):
            continue
        for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            row_counts = [size for size in tensor.shape[:-1] if size != 1]
            has_width = tensor.is_floating_point() and tensor.dim() > 1 and tensor.shape[-1] == width
            has_all_positions = len(row_counts) == 1 and row_counts[0] >= audited_model.input_length
            if has_width and has_all_positions and id(tensor) not in yielded_ids:
                yielded_ids.add(id(tensor))
                yield f"{prefix}.{name}".replace("inner.", "", 1), tensor


def _is_added_to_embedding(audited_model: AuditedModel, position_table: Tensor) -> bool:
    """Return whether changing row 0 of the table has the same effect as changing the first token embedding."""
    ids = audited_model.input_ids[:1, : audited_model.input_length // 2]
    table_rows = position_table.detach().reshape(-1, position_table.shape[-1])
    ids = ids.masked_fill(ids == 0, 1 if audited_model.pad_id != 1 else 2)  # row 0 of a token embedding is then unused
    expected = audited_model.compute_logits(ids)
    offset = (
        PERTURBATION_SIZE
        * torch.linspace(-1, 1, table_rows.shape[1], dtype=table_rows.dtype, device=table_rows.device).cos()
    )
    with _perturb_rows(table_rows[:1], offset):
        logits_with_table_offset = audited_model.compute_logits(ids)
    if torch.equal(logits_with_table_offset, expected):
        return False
    # The original Transformer multiplies the embedding by sqrt(width) before adding positions.
    for factor in (1.0, 1 / math.sqrt(table_rows.shape[1])):
        with _perturb_first_embedding(audited_model, ids, factor * offset):
            logits = audited_model.compute_logits(ids)
        if measure_tensor_difference(
            logits, logits_with_table_offset, "", audited_model.rounding_tolerance
        ).is_within_tolerance:
            return True
    return False


@contextmanager
def _perturb_rows(rows: Tensor, offset: Tensor) -> Iterator[None]:
    """Add `offset` to rows of a position table inside the context."""
    original = rows.clone()
    rows.add_(offset)
    try:
        yield
    finally:
        rows.copy_(original)


@contextmanager
def _perturb_first_embedding(audited_model: AuditedModel, input_ids: Tensor, offset: Tensor) -> Iterator[None]:
    """Add `offset` to the embedding of the first position inside the context, to compare with a position table."""

    def add_offset(_module: nn.Module, layer_inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """Return the output of an embedding layer with the offset added if its input is exactly `input_ids`."""
        if layer_inputs[0].shape != input_ids.shape or not torch.equal(layer_inputs[0], input_ids):
            return output
        return torch.cat((output[:, :1] + offset, output[:, 1:]), dim=1)

    hooks = [
        module.register_forward_hook(add_offset)
        for module in audited_model.model.modules()
        if isinstance(module, nn.Embedding)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
