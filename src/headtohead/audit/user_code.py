"""Tell code from users' files from that of libraries, and describe the errors it raises."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

import torch

PACKAGE_FOLDER = Path(__file__).parents[1]
LIBRARY_PREFIXES = tuple(
    {str(Path(torch.__file__).parent), str(PACKAGE_FOLDER), str(Path(os.__file__).parent), sys.prefix, sys.base_prefix}
)


def format_model_error(error: BaseException) -> str:
    """Return an exception's type and message, and the line in the user's file that raised it."""
    location = find_user_line(error)
    return f"{type(error).__name__}: {error}{f' ({location})' if location else ''}"


def find_user_line(error: BaseException) -> str:
    """Return the file and line of user code in which an exception was raised, or an empty string."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(("<", *LIBRARY_PREFIXES)) and "site-packages" not in frame.filename
    ]
    return f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
