"""KV cache: decoding must give the same logits as one full pass, in an `h2h generate` session and with any chunks.

Scores are computed in full passes, so a wrong cache affects samples but does not withhold the verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from headtohead.audit.model_checks.base import Failure, Measurement, ModelCheck, build_mixed_padding_mask
from headtohead.audit.probe import ModelProbe, UnsupportedInputError
from headtohead.audit.result import CheckResult
from headtohead.audit.tolerance import Difference, measure_difference
from headtohead.audit.user_code import fork_all_rngs, format_model_error
from headtohead.generation.session import DecodingSession
from headtohead.nn.kv_cache import KVCache
from headtohead.nn.transformer import Transformer

DECODE_STEPS = 8
"""number of tokens that are decoded one at a time"""


class KVCacheCheck(ModelCheck):
    """Decoding as in `generate`, in chunks and with padding gives the same logits as one full pass."""

    name = "kv-cache"
    requires_determinism = True
    success = ("cached decoding equals a full pass", "Samples come from the model that is scored.")
    failure = Failure(
        "cached decoding differs from a full pass",
        "Samples generated with the cache are wrong. Scores are computed in full passes and remain valid.",
        "its cache differs",
    )

    def find_inapplicable_reason(self, probe: ModelProbe) -> str:
        """Return why cached decoding cannot be checked: an encoder, no cache support, or a text that is too short."""
        if not probe.is_causal:
            return "the model is an encoder, which does not decode"
        if not isinstance(probe.model, Transformer):
            return "the model has no cache"
        return f"a text of {probe.length} tokens is too short to decode" if probe.length < 3 else ""

    def describe_procedure(self, probe: ModelProbe) -> str:
        return f"prompts and up to {DECODE_STEPS} tokens as in `h2h generate`, a text in two chunks, padded prompts"

    def run(self, probe: ModelProbe) -> CheckResult:
        """Run the check; an exception during a cached pass counts as a failure."""
        try:
            return super().run(probe)
        except UnsupportedInputError as error:
            procedure = f"{self.describe_procedure(probe)}; {probe.setup_description}"
            observation = f"a pass with a cache fails: {error}"
            interpretation = self.failure.interpretation
            return CheckResult(
                self.name, False, procedure, observation, interpretation, failure_reason="its cache fails"
            )

    def measure(self, probe: ModelProbe, *, training: bool = False) -> Iterator[Measurement]:
        """Compare logits computed in chunks with a cache to those from one full pass, with and without padding."""
        assert isinstance(probe.model, Transformer)
        ids, length, num_layers = probe.input_ids[:2], probe.length, len(probe.model.layers)
        compute_logits = partial(probe.compute_logits, training=training)
        yield _measure_session(probe)
        expected = compute_logits(ids)
        steps = min(DECODE_STEPS, length - 1)
        for chunks in ([length - steps] + [1] * steps, [length // 2, length - length // 2]):
            logits = compute_logits_in_chunks(compute_logits, num_layers, ids, chunks)
            yield measure_difference(logits, expected, f"chunks of {_format(chunks)}", probe.rounding_tolerance)
        ids = probe.input_ids
        mask = build_mixed_padding_mask(ids)
        expected = compute_logits(ids, mask)[mask]
        for chunks in ([length - 2, 1, 1], [length // 3, 1, length - length // 3 - 1]):
            logits = compute_logits_in_chunks(compute_logits, num_layers, ids, chunks, mask)[mask]
            label = f"with padding, chunks of {_format(chunks)}"
            yield measure_difference(logits, expected, label, probe.rounding_tolerance)


def _measure_session(probe: ModelProbe) -> Difference:
    """Return the largest change in next-token logits in a `generate` session, with prompts of several lengths."""
    assert isinstance(probe.model, Transformer)
    texts, steps = probe.input_ids, min(DECODE_STEPS, probe.length - 1)
    has_padding = probe.model.can_pad and probe.length > steps + 1
    starts = [row % 2 if has_padding else 0 for row in range(len(texts))]
    if has_padding:
        rows = [probe.compute_logits(text[None, start:])[0] for text, start in zip(texts, starts, strict=True)]
    else:
        rows = list(probe.compute_logits(texts))
    expected = torch.stack([row[-steps - 1 :] for row in rows])
    prompts = [text[start:-steps].tolist() for text, start in zip(texts, starts, strict=True)]
    try:
        with fork_all_rngs(probe.seed, "audit", 0):
            session = DecodingSession(probe.model, prompts)
        logits = [session.logits]
        for tokens in texts[:, -steps:].unbind(1):
            with fork_all_rngs(probe.seed, "audit", 0):
                session.append_tokens(tokens.tolist())
            logits.append(session.logits)
    except Exception as error:
        raise UnsupportedInputError(format_model_error(error)) from error
    return measure_difference(torch.stack(logits, 1), expected, "decoded as in generate", probe.rounding_tolerance)


def _format(chunk_sizes: Sequence[int]) -> str:
    return "1 token" if set(chunk_sizes) == {1} else f"{', '.join(map(str, chunk_sizes))} tokens"


def compute_logits_in_chunks(
    compute_logits: Callable[..., Tensor],
    num_layers: int,
    input_ids: Tensor,
    chunk_sizes: Sequence[int],
    attention_mask: Tensor | None = None,
) -> Tensor:
    """Return the logits at all positions, computed chunk by chunk with a cache, shape (batch, length, vocab)."""
    cache = KVCache(num_layers)
    id_chunks = input_ids.split(list(chunk_sizes), dim=1)
    mask_chunks = [None] * len(id_chunks) if attention_mask is None else attention_mask.split(list(chunk_sizes), dim=1)
    chunks = zip(id_chunks, mask_chunks, strict=True)
    return torch.cat([compute_logits(ids, mask, cache=cache) for ids, mask in chunks], dim=1)
