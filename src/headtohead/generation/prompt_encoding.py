"""Encode prompts for a decoder, with the start token or chat template that it was trained with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headtohead.errors import ModelError, RequestError
from headtohead.pretrained.tokenizer import PretrainedTokenizer

Prompts = str | Sequence[str] | Sequence[Sequence[int]]
"""one text, several texts, or several sequences of token ids"""


def encode_prompt(tokenizer: Any, prompt: str, *, use_chat_template: bool = False) -> list[int]:
    """Encode a prompt, with a start token if the model was trained with one.

    Args:
        tokenizer: Tokenizer of the model.
        prompt: Text of the prompt.
        use_chat_template: Apply the chat template of a pretrained model.

    Raises:
        ModelError: If the prompt is empty and there is no start token.
    """
    if use_chat_template:
        if not isinstance(tokenizer, PretrainedTokenizer):
            raise ModelError("chat requires a pretrained model with a chat template")
        return tokenizer.encode_chat_message(prompt)
    prompt_ids: list[int]
    if isinstance(tokenizer, PretrainedTokenizer):
        prompt_ids = tokenizer.encode_with_start_token(prompt)
    else:
        # A model trained on sequences with start and stop tokens has never seen text without its start token.
        has_bos_and_eos = tokenizer.bos_id is not None and tokenizer.eos_id is not None
        prompt_ids = [*([tokenizer.bos_id] if has_bos_and_eos else []), *tokenizer.encode(prompt)]
    if prompt_ids:
        return prompt_ids
    if tokenizer.bos_id is None:
        raise ModelError("the prompt is empty and the model has no start token: give at least one word")
    return [tokenizer.bos_id]


def encode_prompts(prompts: Prompts, tokenizer: Any, use_chat_template: bool) -> list[list[int]]:
    """Return the token ids of each prompt of a call to `generate`, which are texts or token ids."""
    prompt_list: list[Any] = [prompts] if isinstance(prompts, str) else list(prompts)
    encoded = []
    for prompt in prompt_list:
        if isinstance(prompt, str):
            if tokenizer is None:
                raise RequestError("a text prompt requires a tokenizer: pass one, or prompts of token ids")
            encoded.append(encode_prompt(tokenizer, prompt, use_chat_template=use_chat_template))
        else:
            if len(prompt) == 0:
                raise ModelError("the prompt is empty: give at least one token")
            encoded.append([int(token_id) for token_id in prompt])
    return encoded


def encode_prompt_and_continuation(tokenizer: Any, prompt: str, continuation: str) -> tuple[list[int], list[int]]:
    """Encode prompt and continuation together; return the tokens shared with the prompt alone, and the rest.

    A token that spans the boundary belongs to the continuation.
    """
    prompt_ids, token_ids = encode_prompt(tokenizer, prompt), encode_prompt(tokenizer, prompt + continuation)
    if len(prompt_ids) == 1 and prompt_ids[0] == tokenizer.bos_id and token_ids[:1] != prompt_ids:
        token_ids = [*prompt_ids, *token_ids]  # an empty prompt: the text follows the start token
    pairs = enumerate(zip(prompt_ids, token_ids, strict=False))
    num_shared = next((i for i, (a, b) in pairs if a != b), min(len(prompt_ids), len(token_ids)))
    return token_ids[:num_shared], token_ids[num_shared:]


def get_stop_token_ids(tokenizer: Any) -> tuple[int, ...]:
    """Return the ids of the tokens that end a text; none without a tokenizer."""
    if isinstance(tokenizer, PretrainedTokenizer):
        return tokenizer.stop_ids
    return () if tokenizer is None or tokenizer.eos_id is None else (tokenizer.eos_id,)
