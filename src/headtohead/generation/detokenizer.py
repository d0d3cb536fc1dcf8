"""From tokens to text while they are made: pieces that can be shown at once, and stops that are strings.

A piece is held back while it may still change: half a character in a tokenizer of bytes, or the beginning of a stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from headtohead.errors import ModelError
from headtohead.pretrained.tokenizer import PretrainedTokenizer

HALF = "\ufffd"
"""what a decoder writes for bytes that are no character yet"""


class Tokenizer(Protocol):
    """What decoding needs of a tokenizer: ours and the pretrained ones have it."""

    start_id: int | None
    stop_id: int | None
    vocab_size: int

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def token(self, id: int) -> str: ...


def prompt_ids(tokenizer: Any, text: str, *, chat: bool = False) -> list[int]:
    """A prompt as the model expects to read it. An empty one begins with the start token, if the model has one."""
    if chat:
        if not isinstance(tokenizer, PretrainedTokenizer):
            raise ModelError("a chat needs a pretrained model with a chat template")
        return tokenizer.chat(text)
    ids: list[int]
    if isinstance(tokenizer, PretrainedTokenizer):
        ids = tokenizer.prompt(text)
    else:
        # A model that was trained on rows with a start and a stop has seen no text without its start.
        framed = tokenizer.start_id is not None and tokenizer.stop_id is not None
        ids = [*([tokenizer.start_id] if framed else []), *tokenizer.encode(text)]
    if ids:
        return ids
    if tokenizer.start_id is None:
        raise ModelError("an empty prompt, and the model has no start token: give at least one word to go on from")
    return [tokenizer.start_id]


def stop_ids(tokenizer: Any) -> tuple[int, ...]:
    """The tokens that end a text."""
    if isinstance(tokenizer, PretrainedTokenizer):
        return tokenizer.stop_ids
    return () if tokenizer is None or tokenizer.stop_id is None else (tokenizer.stop_id,)


def continuation_text(tokenizer: Any, prompt: Sequence[int], made: Sequence[int]) -> str:
    """The text of a continuation, with the space that stands between it and the prompt."""
    before, whole = tokenizer.decode(prompt), tokenizer.decode([*prompt, *made])
    # Where the first token joins the prompt's last one, the two texts part a little earlier.
    pairs = enumerate(zip(before, whole, strict=False))
    text: str = whole[next((i for i, (a, b) in pairs if a != b), min(len(before), len(whole))) :]
    return text


class Teller:
    """The text of one continuation as it grows."""

    def __init__(self, tokenizer: Any, prompt: Sequence[int], stops: Sequence[str] = ()) -> None:
        self._tokenizer, self._prompt, self._stops = tokenizer, list(prompt), tuple(stops)
        self.ids: list[int] = []
        self.text = ""
        self.stopped = False
        self._told = 0

    def feed(self, token: int) -> str:
        """One more token; what can be shown now that could not before."""
        self.ids.append(token)
        self.text = continuation_text(self._tokenizer, self._prompt, self.ids)
        places = [place for stop in self._stops if (place := self.text.find(stop)) >= 0]
        if places:
            self.text, self.stopped = self.text[: min(places)], True
            self._forget()
            return self._tell(len(self.text))
        return self._tell(len(self.text) - self._unsure())

    def finish(self) -> str:
        """What was held back."""
        return self._tell(len(self.text))

    def _tell(self, until: int) -> str:
        piece = self.text[self._told : until]
        self._told = max(self._told, until)
        return piece

    def _unsure(self) -> int:
        """Characters at the end that may still change."""
        halves = len(self.text) - len(self.text.rstrip(HALF))
        begun = max((_begun(self.text, stop) for stop in self._stops), default=0)
        return max(halves, begun)

    def _forget(self) -> None:
        """Drop the tokens that lie wholly in the stop."""
        while self.ids:
            shorter = continuation_text(self._tokenizer, self._prompt, self.ids[:-1])
            if not shorter.startswith(self.text):
                return
            self.ids.pop()


def _begun(text: str, stop: str) -> int:
    """How much of the stop the text ends with."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)
