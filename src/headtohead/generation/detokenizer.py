"""Encode prompts, and decode tokens to text during generation, with stop strings.

Text is held back while it may still change: an incomplete UTF-8 character, or the beginning of a stop string.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headtohead.errors import ModelError
from headtohead.pretrained.tokenizer import PretrainedTokenizer

REPLACEMENT_CHARACTER = "\ufffd"
"""decoded from bytes that do not form a complete character"""


def encode_prompt(tokenizer: Any, prompt: str, *, use_chat_template: bool = False) -> list[int]:
    """Return a prompt's token ids, with a start token if the model was trained with one.

    `use_chat_template` applies a pretrained model's chat template. Raise `ModelError` if the prompt is empty and
    there is no start token.
    """
    if use_chat_template:
        if not isinstance(tokenizer, PretrainedTokenizer):
            raise ModelError("chat requires a pretrained model with a chat template")
        return tokenizer.chat(prompt)
    ids: list[int]
    if isinstance(tokenizer, PretrainedTokenizer):
        ids = tokenizer.prompt(prompt)
    else:
        # A model trained on rows with start and stop tokens has never seen text without its start token.
        has_bos_and_eos = tokenizer.bos_id is not None and tokenizer.eos_id is not None
        ids = [*([tokenizer.bos_id] if has_bos_and_eos else []), *tokenizer.encode(prompt)]
    if ids:
        return ids
    if tokenizer.bos_id is None:
        raise ModelError("the prompt is empty and the model has no start token: give at least one word")
    return [tokenizer.bos_id]


def get_stop_token_ids(tokenizer: Any) -> tuple[int, ...]:
    """Return the ids of the tokens that end a text; an empty set without a tokenizer."""
    if isinstance(tokenizer, PretrainedTokenizer):
        return tokenizer.stop_ids
    return () if tokenizer is None or tokenizer.eos_id is None else (tokenizer.eos_id,)


def decode_continuation(tokenizer: Any, prompt_ids: Sequence[int], new_token_ids: Sequence[int]) -> str:
    """Return the decoded text of the new tokens after a prompt, including a space between the two."""
    prompt_text, full_text = tokenizer.decode(prompt_ids), tokenizer.decode([*prompt_ids, *new_token_ids])
    # If the first new token merges with the end of the prompt, the two texts diverge before the prompt ends.
    pairs = enumerate(zip(prompt_text, full_text, strict=False))
    start = next(
        (position for position, (prompt_character, character) in pairs if prompt_character != character),
        min(len(prompt_text), len(full_text)),
    )
    return str(full_text[start:])


class StreamingDetokenizer:
    """Decodes a continuation token by token and stops at a stop string."""

    def __init__(self, tokenizer: Any, prompt_ids: Sequence[int], stop_strings: Sequence[str] = ()) -> None:
        self._tokenizer, self._prompt_ids, self._stop_strings = tokenizer, list(prompt_ids), tuple(stop_strings)
        self.ids: list[int] = []
        self.text = ""
        self.has_stopped = False
        self._num_emitted = 0

    def add_token(self, token_id: int) -> str:
        """Add a token; return the text that can now be shown."""
        self.ids.append(token_id)
        self.text = decode_continuation(self._tokenizer, self._prompt_ids, self.ids)
        positions = [position for stop in self._stop_strings if (position := self.text.find(stop)) >= 0]
        if positions:
            self.text, self.has_stopped = self.text[: min(positions)], True
            self._drop_stop_tokens()
            return self.finish()
        return self._emit(len(self.text) - self._count_unstable_characters())

    def finish(self) -> str:
        """Return the text that was held back."""
        return self._emit(len(self.text))

    def _emit(self, end: int) -> str:
        """Return the text up to `end` that has not been returned yet."""
        new_text = self.text[self._num_emitted : end]
        self._num_emitted = max(self._num_emitted, end)
        return new_text

    def _count_unstable_characters(self) -> int:
        """Return the number of characters at the end that may still change."""
        num_incomplete = len(self.text) - len(self.text.rstrip(REPLACEMENT_CHARACTER))
        return max([num_incomplete, *(_count_stop_overlap(self.text, stop) for stop in self._stop_strings)])

    def _drop_stop_tokens(self) -> None:
        """Remove the tokens that belong entirely to the stop string."""
        while self.ids:
            shorter = decode_continuation(self._tokenizer, self._prompt_ids, self.ids[:-1])
            if not shorter.startswith(self.text):
                return
            self.ids.pop()


def _count_stop_overlap(text: str, stop_string: str) -> int:
    """Return the length of the longest prefix of the stop string that the text ends with."""
    return next(
        (size for size in range(min(len(stop_string) - 1, len(text)), 0, -1) if text.endswith(stop_string[:size])), 0
    )
