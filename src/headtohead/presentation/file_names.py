"""File names for tables and charts."""

from __future__ import annotations

import re


def sanitize_file_name(name: str) -> str:
    """Replace characters that are invalid in file names. Table names can contain user-defined variant names."""
    return re.sub(r"[^\w.-]+", "-", name).strip(".-") or "table"
