"""Imported models compute the logits of transformers, or its hidden states if there is no head."""

from functools import partial

import pytest
import torch
from tests.exchange.tiny_models import DECODERS, ENCODERS, MODELS, VOCAB, build_tiny_model
from torch import Tensor

from headtohead.exchange.conversion.from_transformers import convert_to_parts
from headtohead.nn.parts import registry
from headtohead.nn.transformer import Transformer

TOLERANCE = 2e-5
LENGTH = 29


def draw_input_ids(batch_size: int = 3) -> Tensor:
    return torch.randint(2, VOCAB, (batch_size, LENGTH), generator=torch.Generator().manual_seed(5))


def compute_output(original: torch.nn.Module, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    output = original(input_ids=input_ids, attention_mask=attention_mask)
    return output.logits if "logits" in output else output.last_hidden_state


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_imported_model_equals_transformers(name: str) -> None:
    original = build_tiny_model(name)
    imported, _ = convert_to_parts(original)
    for slot, part in imported.model_config.list_parts():
        assert registry.get_part_class(slot, part.kind).__module__.startswith("headtohead.nn.parts.")
    input_ids = draw_input_ids()
    attention_mask = torch.ones_like(input_ids)
    if name in ENCODERS:
        attention_mask[1, 20:] = 0
        attention_mask[2, 9:] = 0
        input_ids = input_ids.where(attention_mask.bool(), original.config.pad_token_id)
    expected = compute_output(original, input_ids, attention_mask)
    assert expected[attention_mask.bool()].std() > 0.2
    for implementation in imported.attn_implementations:
        logits = imported(input_ids, attention_mask.bool(), attn_implementation=implementation).logits
        assert (logits - expected)[attention_mask.bool()].abs().max() < TOLERANCE, implementation
    if name in DECODERS:
        check_decoding(imported, input_ids, expected)


def check_decoding(imported: Transformer, input_ids: Tensor, expected: Tensor) -> None:
    """Check next-token logits with a cache, on the fast path and on the reference path."""
    for is_fast in (False, True):
        cache = imported.create_cache()
        assert cache is not None
        logits = imported.next_token_logits(input_ids[:, :17], cache=cache)
        assert (logits - expected[:, 16]).abs().max() < TOLERANCE
        step = imported.build_decode_step(cache) if is_fast else partial(imported.next_token_logits, cache=cache)
        for position in range(17, LENGTH):
            error = (step(input_ids[:, position : position + 1]) - expected[:, position]).abs().max()
            assert error < TOLERANCE, (position, is_fast)
