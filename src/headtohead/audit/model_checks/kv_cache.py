"""KV cache: decoding must give the same logits as one full pass, in an `h2h generate` session and in any chunks.

Scores are computed in full passes, so a wrong cache affects samples but does not withhold the verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from headtohead.audit.audited_model import AuditedModel, UnsupportedInputError
from headtohead.audit.model_checks.base import FailureWording, Measurement, ModelCheck, SuccessWording
from headtohead.audit.model_checks.padding import build_mixed_padding_mask
from headtohead.audit.result import CheckResult
from headtohead.audit.tolerance import Difference, measure_tensor_difference
from headtohead.audit.user_code import format_model_error
from headtohead.generation.session import DecodingSession
from headtohead.nn.kv_cache import KVCache
from headtohead.nn.random_state import fork_seeded_rng
from headtohead.nn.transformer import Transformer

MAX_DECODED_TOKENS = 8
"""number of tokens that are decoded one at a time"""


class KVCacheCheck(ModelCheck):
    """Decoding as in `generate`, in chunks and with padding gives the same logits as one full pass."""

    name = "kv-cache"
    requires_determinism = True
    success = SuccessWording("cached decoding equals a full pass", "Samples come from the model that is scored.")
    failure = FailureWording(
        "cached decoding differs from a full pass",
        "Samples generated with the cache are wrong. Scores are computed in full passes and remain valid.",
        "its cache differs",
    )

    def find_inapplicable_reason(self, audited_model: AuditedModel) -> str:
        """Return the reason to skip the check: the model is an encoder, has no cache, or the inputs are too short."""
        if not audited_model.is_causal:
            return "the model is an encoder, which does not decode"
        if not isinstance(audited_model.model, Transformer):
            return "the model has no cache"
        return (
            f"a sequence of {audited_model.input_length} tokens is too short to decode"
            if audited_model.input_length < 3
            else ""
        )

    def describe_procedure(self, audited_model: AuditedModel) -> str:
        decoding = f"prompts and up to {MAX_DECODED_TOKENS} tokens as in `h2h generate`"
        return f"{decoding}, a sequence in two chunks, padded prompts"

    def run(self, audited_model: AuditedModel) -> CheckResult:
        """Run the check; an exception during a cached pass counts as a failure."""
        try:
            return super().run(audited_model)
        except UnsupportedInputError as error:
            procedure = f"{self.describe_procedure(audited_model)}; {audited_model.setup_description}"
            observation = f"a pass with a cache fails: {error}"
            interpretation = self.failure.interpretation
            return CheckResult(
                self.name, False, procedure, observation, interpretation, failure_reason="its cache fails"
            )

    def measure_differences(self, audited_model: AuditedModel, *, training: bool = False) -> Iterator[Measurement]:
        """Compare logits computed in chunks with a cache to those from one full pass, with and without padding."""
        assert isinstance(audited_model.model, Transformer)
        ids, length, num_layers = (
            audited_model.input_ids[:2],
            audited_model.input_length,
            audited_model.model.stack.depth,
        )
        compute_logits = partial(audited_model.compute_logits, training=training)
        tolerance = audited_model.rounding_tolerance
        yield _measure_decoding_session_error(audited_model)
        expected = compute_logits(ids)
        num_decoded = min(MAX_DECODED_TOKENS, length - 1)
        for chunk_sizes in ([length - num_decoded] + [1] * num_decoded, [length // 2, length - length // 2]):
            logits = compute_logits_in_chunks(compute_logits, num_layers, ids, chunk_sizes)
            label = f"chunks of {_format_chunk_sizes(chunk_sizes)}"
            yield measure_tensor_difference(logits, expected, label, tolerance)
        ids = audited_model.input_ids
        mask = build_mixed_padding_mask(ids)
        expected = compute_logits(ids, mask)[mask]
        for chunk_sizes in ([length - 2, 1, 1], [length // 3, 1, length - length // 3 - 1]):
            logits = compute_logits_in_chunks(compute_logits, num_layers, ids, chunk_sizes, mask)[mask]
            label = f"with padding, chunks of {_format_chunk_sizes(chunk_sizes)}"
            yield measure_tensor_difference(logits, expected, label, tolerance)


def _measure_decoding_session_error(audited_model: AuditedModel) -> Difference:
    """Return the largest difference between next-token logits with a KV cache, in a session, and of full passes.

    The batch is decoded as in `h2h generate`, with prompts of two lengths if the model can pad.
    """
    assert isinstance(audited_model.model, Transformer)
    input_ids = audited_model.input_ids
    num_decoded = min(MAX_DECODED_TOKENS, audited_model.input_length - 1)
    has_padding = audited_model.model.can_pad and audited_model.input_length > num_decoded + 1
    start_positions = [batch_index % 2 if has_padding else 0 for batch_index in range(len(input_ids))]
    sequences = [sequence[start:] for sequence, start in zip(input_ids, start_positions, strict=True)]
    if has_padding:
        full_logits = [audited_model.compute_logits(sequence[None])[0] for sequence in sequences]
    else:
        full_logits = list(audited_model.compute_logits(input_ids))
    expected = torch.stack([logits[-num_decoded - 1 :] for logits in full_logits])
    prompts = [sequence[:-num_decoded].tolist() for sequence in sequences]
    try:
        with fork_seeded_rng(audited_model.seed, "audit", 0):
            session = DecodingSession(audited_model.model, prompts)
        step_logits = [session.logits]
        for token_ids in input_ids[:, -num_decoded:].unbind(1):
            with fork_seeded_rng(audited_model.seed, "audit", 0):
                session.append_tokens(token_ids.tolist())
            step_logits.append(session.logits)
    except Exception as error:
        raise UnsupportedInputError(format_model_error(error)) from error
    logits, tolerance = torch.stack(step_logits, 1), audited_model.rounding_tolerance
    return measure_tensor_difference(logits, expected, "decoded as in generate", tolerance)


def _format_chunk_sizes(chunk_sizes: Sequence[int]) -> str:
    """Return the label of a comparison in which a sequence is decoded in chunks of these sizes."""
    return "1 token" if set(chunk_sizes) == {1} else f"{', '.join(map(str, chunk_sizes))} tokens"


def compute_logits_in_chunks(
    compute_logits: Callable[..., Tensor],
    num_layers: int,
    input_ids: Tensor,
    chunk_sizes: Sequence[int],
    attention_mask: Tensor | None = None,
) -> Tensor:
    """Return the logits at all positions, computed chunk by chunk with a KV cache, shape (batch, length, vocab)."""
    cache = KVCache(num_layers)
    id_chunks = input_ids.split(list(chunk_sizes), dim=1)
    mask_chunks = [None] * len(id_chunks) if attention_mask is None else attention_mask.split(list(chunk_sizes), dim=1)
    chunks = zip(id_chunks, mask_chunks, strict=True)
    return torch.cat([compute_logits(ids, mask, cache=cache) for ids, mask in chunks], dim=1)
