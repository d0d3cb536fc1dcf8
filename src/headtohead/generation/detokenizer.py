"""Decode generated tokens to text, all at once or token by token, with stop strings.

Text is held back while it may still change: an incomplete UTF-8 character, or the beginning of a stop string.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

REPLACEMENT_CHARACTER = "\ufffd"
"""decoded from bytes that do not form a complete character"""


def decode_continuation(tokenizer: Any, prompt_ids: Sequence[int], new_token_ids: Sequence[int]) -> str:
    """Detokenize the new tokens after a prompt all at once, including a space between the two."""
    prompt_text, full_text = tokenizer.decode(prompt_ids), tokenizer.decode([*prompt_ids, *new_token_ids])
    # If the first new token merges with the end of the prompt, the two texts diverge before the prompt ends.
    pairs = enumerate(zip(prompt_text, full_text, strict=False))
    continuation_start = next(
        (position for position, (prompt_character, character) in pairs if prompt_character != character),
        min(len(prompt_text), len(full_text)),
    )
    return str(full_text[continuation_start:])


class StreamingDetokenizer:
    """Decodes a continuation token by token and stops at a stop string."""

    def __init__(self, tokenizer: Any, prompt_ids: Sequence[int], stop_strings: Sequence[str] = ()) -> None:
        """Prepare to decode the tokens that follow a prompt, one at a time."""
        self._tokenizer, self._prompt_ids, self._stop_strings = tokenizer, list(prompt_ids), tuple(stop_strings)
        self.token_ids: list[int] = []
        self.text = ""
        self.has_stopped = False
        self._num_returned = 0

    def add_token(self, token_id: int) -> str:
        """Add a token; return the text that has become final."""
        self.token_ids.append(token_id)
        self.text = decode_continuation(self._tokenizer, self._prompt_ids, self.token_ids)
        stop_positions = [position for stop in self._stop_strings if (position := self.text.find(stop)) >= 0]
        if stop_positions:
            self.text, self.has_stopped = self.text[: min(stop_positions)], True
            self._drop_stop_string_tokens()
            return self.finish()
        return self._take_text(len(self.text) - self._count_unstable_characters())

    def finish(self) -> str:
        """Return the remaining text."""
        return self._take_text(len(self.text))

    def _take_text(self, end: int) -> str:
        """Return the text up to the position `end` that has not been returned yet."""
        new_text = self.text[self._num_returned : end]
        self._num_returned = max(self._num_returned, end)
        return new_text

    def _count_unstable_characters(self) -> int:
        """Return the number of characters at the end of the text that may still change."""
        num_incomplete = len(self.text) - len(self.text.rstrip(REPLACEMENT_CHARACTER))
        return max([num_incomplete, *(_count_stop_overlap(self.text, stop) for stop in self._stop_strings)])

    def _drop_stop_string_tokens(self) -> None:
        """Remove the tokens that belong entirely to the stop string."""
        while self.token_ids:
            shorter_text = decode_continuation(self._tokenizer, self._prompt_ids, self.token_ids[:-1])
            if not shorter_text.startswith(self.text):
                return
            self.token_ids.pop()


def _count_stop_overlap(text: str, stop_string: str) -> int:
    """Return the length of the longest prefix of the stop string that the text ends with."""
    return next(
        (size for size in range(min(len(stop_string) - 1, len(text)), 0, -1) if text.endswith(stop_string[:size])), 0
    )
