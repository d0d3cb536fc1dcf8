"""Limit the time and memory that an untrusted tokenizer may use.

A tokenizer.json may contain regular expressions that take cubic time, replacements that double the text, or padding to
any length, and the tokenizers library cannot be interrupted. `TokenizerGuard` therefore first tries each text in a
child process with limits; only a text that was encoded within them is then encoded in this process. `python -m
headtohead.data.tokenization.tokenizer_guard` starts the child; see `child_process` for the protocol.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from weakref import finalize

from headtohead.child_process import ChildExitedError, ChildProcess, ParentChannel
from headtohead.data.tokenization import treebank
from headtohead.errors import DataError

CPU_SECONDS = 5.0
"""CPU time for one call, plus one second for every `CHARACTERS_PER_SECOND` characters"""
CHARACTERS_PER_SECOND = 50_000
MAX_ADDRESS_SPACE_BYTES = 1 << 30
TIMEOUT_SECONDS = 600.0
"""limit of the elapsed time, for a child that gets no CPU time"""
ANY_CHARACTER_PATTERN = "(?m)."  # in Oniguruma, (?m) lets a period match line breaks
MAX_WORD_CHARS = 1000
"""a WordPiece model takes time quadratic in the word length, up to its limit"""


class TokenizerGuard:
    """Checks that a tokenizer can encode and decode within limits, in a child process that starts when first needed."""

    def __init__(self, tokenizer_json: str) -> None:
        self._tokenizer_json = tokenizer_json
        self._has_slow_decoder = bool(_list_foreign_patterns(json.loads(tokenizer_json).get("decoder")))
        self._child: ChildProcess | None = None

    def check_encoding(self, texts: Sequence[str]) -> None:
        """Raise DataError if encoding `texts` exceeds the time or memory limit."""
        num_characters = sum(map(len, texts))
        self._try_in_child({"texts": list(texts)}, CPU_SECONDS + num_characters / CHARACTERS_PER_SECOND, "encode")

    def check_decoding(self, token_ids: Sequence[int]) -> None:
        """Raise DataError if decoding `token_ids` exceeds the time or memory limit."""
        if self._has_slow_decoder:
            cpu_seconds = CPU_SECONDS + len(token_ids) / CHARACTERS_PER_SECOND
            self._try_in_child({"ids": list(map(int, token_ids))}, cpu_seconds, "decode")

    def _try_in_child(self, request: dict[str, Any], cpu_seconds: float, verb: str) -> None:
        """Encode or decode in the child process; raise DataError if the child was killed for exceeding a limit."""
        if self._child is None:
            self._child = ChildProcess("headtohead.data.tokenization.tokenizer_guard", log_path=Path(os.devnull))
            finalize(self, _kill_child, self._child)
            request["tokenizer"] = self._tokenizer_json
        try:
            self._child.call({**request, "cpu_seconds": cpu_seconds}, TIMEOUT_SECONDS)
        except BaseException as error:  # also if the request was cancelled: its child would keep running
            _kill_child(self._child)
            was_slow = self._child.process.returncode == -signal.SIGPROF
            self._child = None
            if not isinstance(error, ChildExitedError):
                raise
            reason = (
                f"takes more than {cpu_seconds:.1f} s of CPU time to {verb} this text; its patterns may be slow"
                if was_slow
                else f"fails to {verb} this text within {MAX_ADDRESS_SPACE_BYTES >> 20:,} MiB: its process {error}"
            )
            raise DataError(f"the tokenizer cannot be used: it {reason}") from None


def _kill_child(child: ChildProcess) -> None:
    child.process.kill()
    child.process.wait()
    child.close_pipes()


def create_tokenizer_guard(tokenizer_json: str) -> TokenizerGuard | None:
    """Return a guard for a tokenizer, or None if its time and memory are known to be bounded."""
    return TokenizerGuard(tokenizer_json) if _may_be_slow(json.loads(tokenizer_json)) else None


def _may_be_slow(tokenizer_json: dict[str, Any]) -> bool:
    """Return whether a tokenizer has patterns that are not ours, pads its output, or searches long words."""
    model = tokenizer_json["model"]
    return (
        any(_list_foreign_patterns(tokenizer_json.get(name)) for name in ("normalizer", "pre_tokenizer", "decoder"))
        or tokenizer_json.get("padding") is not None
        or model.get("max_input_chars_per_word", 0) > MAX_WORD_CHARS
        or (model["type"] == "Unigram" and any(len(token) > MAX_WORD_CHARS for token, _ in model["vocab"]))
    )


def _list_foreign_patterns(component: object) -> set[str]:
    """Return the patterns of a normalizer, pre-tokenizer or decoder whose running time is unknown, as JSON."""
    return {json.dumps(pattern) for pattern in _iter_patterns(component)} - _PATTERNS_IN_LINEAR_TIME


def _iter_patterns(component: object) -> Iterator[object]:
    """Yield the patterns and replacements in an untrusted tokenizer.json, which may make it slow."""
    if isinstance(component, dict):
        if "pattern" in component:
            yield component["pattern"], component.get("content")
        for inner_component in component.values():
            yield from _iter_patterns(inner_component)
    elif isinstance(component, list):
        for inner_component in component:
            yield from _iter_patterns(inner_component)


_PATTERNS_IN_LINEAR_TIME = {
    json.dumps(({"Regex": pattern}, content))
    for pattern, content in [*treebank.ALL_RULES, (ANY_CHARACTER_PATTERN, None)]
}


def main() -> None:
    """Encode or decode what `TokenizerGuard` sends to this child process, with limits on memory and CPU time.

    The timer's signal is fatal.
    """
    channel = ParentChannel()
    from tokenizers import Tokenizer

    _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
    is_unlimited = hard_limit == resource.RLIM_INFINITY
    soft_limit = MAX_ADDRESS_SPACE_BYTES if is_unlimited else min(MAX_ADDRESS_SPACE_BYTES, hard_limit)
    resource.setrlimit(resource.RLIMIT_AS, (soft_limit, hard_limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    tokenizer: Tokenizer | None = None
    for request in channel.iter_requests():
        if "tokenizer" in request:
            tokenizer = Tokenizer.from_str(request["tokenizer"])
        assert tokenizer is not None
        signal.setitimer(signal.ITIMER_PROF, request["cpu_seconds"])
        with contextlib.suppress(Exception):  # the parent gets the same error from its own call
            if "ids" in request:
                tokenizer.decode(request["ids"], skip_special_tokens=False)
            for text in request.get("texts", ()):
                tokenizer.encode(text, add_special_tokens=False)
        signal.setitimer(signal.ITIMER_PROF, 0)
        channel.send({"request": request["request"]})


if __name__ == "__main__":
    main()
