"""Read one experiment file as plain dicts, with the line of each key, before its settings are validated."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from headtohead.config.overlays import RawConfig, RawExperiment
from headtohead.config.toml import MAX_FILE_BYTES, find_unsupported_values, parse_toml
from headtohead.errors import ConfigError, RequestError, ValidationIssue


def read_experiment_file(path: Path) -> RawExperiment:
    """Read an experiment file as raw settings, without validating them; raise `ConfigError` if it is not TOML."""
    raw: RawConfig = {}
    try:
        text = path.read_text(encoding="utf-8") if path.stat().st_size <= MAX_FILE_BYTES else ""
        raw = parse_toml(text)
        message = "is empty; `h2h recipes --show NAME` prints one to start from"
        if path.stat().st_size > MAX_FILE_BYTES:
            message = f"is too long for an experiment (more than {MAX_FILE_BYTES:,} bytes)"
        issues = find_unsupported_values(raw) if raw else [ValidationIssue("file", message)]
    except UnicodeDecodeError as error:
        issues = [ValidationIssue(f"byte {error.start}", "is not UTF-8 text")]
    except ValueError as error:
        hint = "; text needs quotes" if str(error).startswith("Invalid value") else ""
        issues = [ValidationIssue("TOML", f"{error}{hint}")]
    except OSError as error:
        raise RequestError(f"{path}: cannot read file ({error.strerror})") from None
    if issues:
        raise ConfigError(str(path), issues)
    return RawExperiment(path.stem, str(path), raw, _find_line_numbers(text))


def _find_line_numbers(text: str) -> dict[str, int]:
    """Return the line number of each dotted key in an experiment file. Keys in unusual layouts may be missing."""
    line_numbers: dict[str, int] = {}
    num_array_elements: Counter[str] = Counter()
    table = ""
    for line_number, line in enumerate(text.splitlines(), start=1):
        # Adjacent terms of these patterns share no character, which avoids catastrophic backtracking on long lines.
        if header := re.match(r"\s*(\[+)([^\[\]]+)\]", line):
            table = header.group(2).strip()
            line_numbers.setdefault(table, line_number)
            if header.group(1) == "[[":
                table = f"{table}.{num_array_elements[table]}"
                num_array_elements[table.rpartition(".")[0]] += 1
                line_numbers[table] = line_number
        elif key := re.match(r"\s*([\w.\-\"]+)\s*=", line):
            line_numbers.setdefault(f"{table}.{key.group(1)}".strip(".").replace('"', ""), line_number)
    return line_numbers


def add_line_number(
    issue: ValidationIssue, line_numbers: Mapping[str, int], overridden_keys: set[str]
) -> ValidationIssue:
    """Return the issue with its line in the experiment file, or with the `--set` option that caused it."""
    keys = issue.location.split(".")
    for end in range(len(keys), 0, -1):
        key = ".".join(keys[:end])
        if key in overridden_keys:
            return replace(issue, location=f"--set {issue.location}")
        if key in line_numbers:
            return replace(issue, location=f"{issue.location} (line {line_numbers[key]})")
    return issue
