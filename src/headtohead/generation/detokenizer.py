"""From tokens to text while they are made: pieces that can be shown at once, and stops that are strings.

A piece is held back while it may still change: half a character in a tokenizer of bytes, or the beginning of a stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headtohead.errors import ModelError
from headtohead.pretrained.tokenizer import PretrainedTokenizer

REPLACEMENT_CHARACTER = "\ufffd"
"""what a decoder writes for bytes that are no character yet"""


def encode_prompt(tokenizer: Any, prompt: str, *, use_chat_template: bool = False) -> list[int]:
    """A prompt as the model expects to read it. An empty one begins with the start token, if the model has one."""
    if use_chat_template:
        if not isinstance(tokenizer, PretrainedTokenizer):
            raise ModelError("a chat needs a pretrained model with a chat template")
        return tokenizer.chat(prompt)
    ids: list[int]
    if isinstance(tokenizer, PretrainedTokenizer):
        ids = tokenizer.prompt(prompt)
    else:
        # A model that was trained on rows with a start and a stop has seen no text without its start.
        framed = tokenizer.bos_id is not None and tokenizer.eos_id is not None
        ids = [*([tokenizer.bos_id] if framed else []), *tokenizer.encode(prompt)]
    if ids:
        return ids
    if tokenizer.bos_id is None:
        raise ModelError("an empty prompt, and the model has no start token: give at least one word to go on from")
    return [tokenizer.bos_id]


def get_stop_token_ids(tokenizer: Any) -> tuple[int, ...]:
    """The tokens that end a text."""
    if isinstance(tokenizer, PretrainedTokenizer):
        return tokenizer.stop_ids
    return () if tokenizer is None or tokenizer.eos_id is None else (tokenizer.eos_id,)


def decode_continuation(tokenizer: Any, prompt_ids: Sequence[int], new_token_ids: Sequence[int]) -> str:
    """The text of a continuation, with the space that stands between it and the prompt."""
    before, whole = tokenizer.decode(prompt_ids), tokenizer.decode([*prompt_ids, *new_token_ids])
    # Where the first token joins the prompt's last one, the two texts part a little earlier.
    pairs = enumerate(zip(before, whole, strict=False))
    text: str = whole[next((i for i, (a, b) in pairs if a != b), min(len(before), len(whole))) :]
    return text


class StreamingDetokenizer:
    """The text of one continuation as it grows."""

    def __init__(self, tokenizer: Any, prompt_ids: Sequence[int], stop_strings: Sequence[str] = ()) -> None:
        self._tokenizer, self._prompt_ids, self._stop_strings = tokenizer, list(prompt_ids), tuple(stop_strings)
        self.ids: list[int] = []
        self.text = ""
        self.stopped = False
        self._told = 0

    def feed(self, token_id: int) -> str:
        """One more token; what can be shown now that could not before."""
        self.ids.append(token_id)
        self.text = decode_continuation(self._tokenizer, self._prompt_ids, self.ids)
        places = [place for stop in self._stop_strings if (place := self.text.find(stop)) >= 0]
        if places:
            self.text, self.stopped = self.text[: min(places)], True
            self._drop_stop_tokens()
            return self._tell(len(self.text))
        return self._tell(len(self.text) - self._unsure())

    def finish(self) -> str:
        """What was held back."""
        return self._tell(len(self.text))

    def _tell(self, end: int) -> str:
        piece = self.text[self._told : end]
        self._told = max(self._told, end)
        return piece

    def _unsure(self) -> int:
        """Characters at the end that may still change."""
        halves = len(self.text) - len(self.text.rstrip(REPLACEMENT_CHARACTER))
        begun = max((_count_stop_overlap(self.text, stop) for stop in self._stop_strings), default=0)
        return max(halves, begun)

    def _drop_stop_tokens(self) -> None:
        """Drop the tokens that lie wholly in the stop."""
        while self.ids:
            shorter = decode_continuation(self._tokenizer, self._prompt_ids, self.ids[:-1])
            if not shorter.startswith(self.text):
                return
            self.ids.pop()


def _count_stop_overlap(text: str, stop_string: str) -> int:
    """How much of the stop the text ends with."""
    return next(
        (size for size in range(min(len(stop_string) - 1, len(text)), 0, -1) if text.endswith(stop_string[:size])), 0
    )
