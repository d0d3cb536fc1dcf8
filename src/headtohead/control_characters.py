"""Escape control characters, with which text from a file or a model could command the user's terminal."""

from __future__ import annotations

import re

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def escape_control_characters(text: str) -> str:
    """Return text that is safe to print, with control characters as backslash escapes.

    Line breaks and tabs are preserved. Marks that reorder text and unpaired surrogates are escaped too.
    """

    def escape(match: re.Match[str]) -> str:
        code = ord(match[0])
        return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"

    return _CONTROL_CHARACTERS.sub(escape, text)
