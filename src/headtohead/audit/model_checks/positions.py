"""Position signals: at most one may be added to the input.

Signals of different kinds (added to the input, rotating queries and keys, added to the attention scores) combine well;
two that are added to the input overlap. Each position part of a Transformer is tested directly. In other networks,
position tables are recognised by their effect: a tensor (positions, width) is one if adding a vector to a position's
row has the same effect as adding it to the token embedding at that position. Signals that forward computes without a
table cannot be detected.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from headtohead.audit.probe import ModelProbe
from headtohead.audit.result import CheckResult, build_not_applicable
from headtohead.audit.tolerance import measure_difference
from headtohead.nn.parts.position import Position
from headtohead.nn.transformer import Transformer
from headtohead.pretrained.classifier import EncoderClassifier

CHECK_NAME = "position-signals"
PERTURBATION_SIZE = 0.5


def check_position_signals(probe: ModelProbe) -> CheckResult:
    """Check that at most one position signal is added to the input."""
    if isinstance(probe.model, Transformer):
        return _build_result(*_find_signals_in_parts(probe.model, probe.length))
    if isinstance(probe.model, EncoderClassifier):
        return build_not_applicable(CHECK_NAME, "the model is pretrained")
    if probe.length < 4 or probe.nondeterminism != "none":
        return build_not_applicable(CHECK_NAME, "position tables cannot be detected in this model")
    probe = probe.copy_without_buffer_restore()
    with probe.capture_embeddings(probe.input_ids) as embeddings:
        probe.run_forward(probe.input_ids)
    if not embeddings:
        return build_not_applicable(CHECK_NAME, "no embedding layer receives the token ids")
    tables = [
        name
        for name, table in _find_position_tables(probe, embeddings[-1].shape[-1])
        if _is_added_to_embedding(probe, table)
    ]
    procedure = "tensors (positions, width): whether adding to a row equals adding to the token embedding there"
    return _build_result(tables, [], procedure)


def _build_result(input_signals: list[str], other_signals: list[str], procedure: str) -> CheckResult:
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


def _find_signals_in_parts(model: Transformer, length: int) -> tuple[list[str], list[str], str]:
    """Return the signals that position parts add to the input, any further signals, and the procedure used."""
    dtype = model.embedding.weight.dtype
    positions = torch.arange(length, device=model.embedding.weight.device)
    hidden_states = torch.ones(1, length, model.sizes.width, dtype=dtype, device=positions.device)
    heads = torch.ones(1, model.sizes.heads, length, model.sizes.head_dim, dtype=dtype, device=positions.device)
    input_signals, other_signals = [], []
    with torch.no_grad():
        for part in model.positions:
            assert isinstance(part, Position)
            reversed_positions = positions.flip(0)
            if not torch.equal(
                part.add_positions(hidden_states, positions), part.add_positions(hidden_states, reversed_positions)
            ):
                input_signals.append(part.kind)
            if not torch.equal(part.rotate(heads, positions), part.rotate(heads, reversed_positions)):
                other_signals.append(f"{part.kind} (rotates queries and keys)")
            if part.compute_bias(positions, positions) is not None:
                other_signals.append(f"{part.kind} (added to the attention scores)")
    return input_signals, other_signals, f"effect of {len(model.positions)} position parts on {length} positions"


def _find_position_tables(probe: ModelProbe, width: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the name and tensor of possible position tables in user modules and embedding layers, judged by shape."""
    known_ids = set()
    for prefix, module in probe.model.named_modules():
        if type(module).__module__.startswith("torch.nn") and not isinstance(module, nn.Embedding):
            continue
        for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            row_counts = [size for size in tensor.shape[:-1] if size != 1]
            fits = (
                tensor.is_floating_point() and tensor.dim() > 1 and tensor.shape[-1] == width and len(row_counts) == 1
            )
            if fits and row_counts[0] >= probe.length and id(tensor) not in known_ids:
                known_ids.add(id(tensor))
                yield f"{prefix}.{name}".replace("inner.", "", 1), tensor


def _is_added_to_embedding(probe: ModelProbe, table: Tensor) -> bool:
    """Return whether changing row 0 of the table has the same effect as changing the first token embedding."""
    ids = probe.input_ids[:1, : probe.length // 2]
    table_rows = table.detach().reshape(-1, table.shape[-1])
    ids = ids.masked_fill(ids == 0, 1 if probe.pad_id != 1 else 2)  # row 0 of a token embedding is then unused
    expected = probe.compute_logits(ids)
    offset = (
        PERTURBATION_SIZE
        * torch.linspace(-1, 1, table_rows.shape[1], dtype=table_rows.dtype, device=table_rows.device).cos()
    )
    with _perturb_rows(table_rows[:1], offset):
        logits_with_table_offset = probe.compute_logits(ids)
    if torch.equal(logits_with_table_offset, expected):
        return False
    # The original Transformer multiplies the embedding by sqrt(width) before adding positions.
    for factor in (1.0, 1 / math.sqrt(table_rows.shape[1])):
        with _perturb_first_embedding(probe, ids, factor * offset):
            logits = probe.compute_logits(ids)
        if measure_difference(logits, logits_with_table_offset, "", probe.rounding_tolerance).is_within_tolerance:
            return True
    return False


@contextmanager
def _perturb_rows(rows: Tensor, offset: Tensor) -> Iterator[None]:
    """Add `offset` to the rows inside the context."""
    original = rows.clone()
    rows.add_(offset)
    try:
        yield
    finally:
        rows.copy_(original)


@contextmanager
def _perturb_first_embedding(probe: ModelProbe, input_ids: Tensor, offset: Tensor) -> Iterator[None]:
    """Add `offset` to the embedding of the first token inside the context."""

    def add(_module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if arguments[0].shape != input_ids.shape or not torch.equal(arguments[0], input_ids):
            return output
        return torch.cat((output[:, :1] + offset, output[:, 1:]), dim=1)

    hooks = [module.register_forward_hook(add) for module in probe.model.modules() if isinstance(module, nn.Embedding)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
