"""Comparison files (`h2h versus comparison.toml`), and the equivalent settings built from the command line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from headtohead.config.base import FOLDER_NAME_PATTERN, FOLDER_NAME_RULE, BaseConfig, SmallCount
from headtohead.config.experiment import BASELINE
from headtohead.config.toml import MAX_FILE_BYTES, parse_toml
from headtohead.errors import ConfigError, RequestError, ValidationIssue
from headtohead.verdict.rule import MetricName

Goal = Literal["lower", "higher"]
Reduction = Literal["last", "best", "mean"]
LOWER_IS_BETTER = re.compile(r"loss|perplexity|ppl|err|nll|bpb|bpc|bits|wer|cer|mse|mae|time|seconds", re.IGNORECASE)
HIGHER_IS_BETTER = re.compile(r"acc|score|f1|bleu|rouge|auc|precision|recall|reward|r2|mcc", re.IGNORECASE)
SEED_FIELD, OUT_FIELD, VARIANT_FIELD = "{seed}", "{out}", "{variant}"
SHELL = ("/bin/sh", "-c")


class MetricConfig(BaseConfig):
    """Which number of a run is compared, and where it is read."""

    name: str = Field(min_length=1)
    """name of the metric, as the script writes it"""
    goal: Goal | None = None
    """whether lower or higher values are better; inferred from names such as val_loss or accuracy"""
    source: str | None = None
    """file or folder with the metric: .json, .jsonl, .csv, TensorBoard or W&B folder; {out} and {seed} are replaced.
    Without it, the metric is read from the output of the command."""
    pattern: str | None = None
    """regular expression with one group, which matches the value in the output"""
    reduction: Reduction = "last"
    """last value, best value, or mean of the last `window` values"""
    window: SmallCount = 5
    """number of values for reduction = "mean" """
    best_by: str | None = None
    """reduction = "best": another metric of the script whose best value selects the step"""
    examples: str | None = None
    """file with scores per example: .csv or .jsonl with example, score, optionally weight and document"""

    @field_validator("pattern")
    @classmethod
    def _check_pattern(cls, pattern: str | None) -> str | None:
        """Raise ValueError unless the pattern is a regular expression with exactly one group."""
        if pattern is not None:
            try:
                groups = re.compile(pattern).groups
            except re.error as error:
                raise ValueError(f"is not a regular expression: {error}") from None
            if groups != 1:
                raise ValueError(f"needs exactly one group for the value, has {groups}")
        return pattern

    @model_validator(mode="after")
    def _check_goal(self) -> MetricConfig:
        if self.goal is None and infer_goal(self.name) is None:
            raise ValueError(f"goal is needed: are lower or higher values of {self.name!r} better?")
        return self

    @property
    def is_lower_better(self) -> bool:
        return (self.goal or infer_goal(self.name)) == "lower"

    @property
    def kind(self) -> MetricName:
        """The metric used for the verdict: relative changes for perplexity, differences otherwise."""
        if re.search(r"perplexity|ppl", self.name, re.IGNORECASE) and self.is_lower_better:
            return "perplexity"
        return "loss" if self.is_lower_better else "score"


def infer_goal(name: str) -> Goal | None:
    """Infer from a metric's name whether lower or higher values are better; return None if the name does not tell."""
    if LOWER_IS_BETTER.search(name):
        return "lower"
    return "higher" if HIGHER_IS_BETTER.search(name) else None


class CommandConfig(BaseConfig):
    """One side of a comparison: a command, optionally in a git revision."""

    command: str | tuple[str, ...]
    """command line; {seed}, {out} and {variant} are replaced"""
    revision: str | None = None
    """git revision to run it in; "." is the working tree with its uncommitted changes"""
    env: dict[str, str] = Field(default_factory=dict)
    """environment variables"""

    def expand(self, seed: int, out: Path, variant: str, *, use_shell: bool) -> tuple[str, ...]:
        """Return the process arguments for one run."""
        fields = {SEED_FIELD: str(seed), OUT_FIELD: str(out), VARIANT_FIELD: variant}
        if use_shell:
            line = self.command if isinstance(self.command, str) else shlex.join(self.command)
            return (*SHELL, replace_fields(line, {key: shlex.quote(value) for key, value in fields.items()}))
        words = shlex.split(self.command) if isinstance(self.command, str) else self.command
        return tuple(replace_fields(word, fields) for word in words)

    @property
    def text(self) -> str:
        """The command line as text."""
        return self.command if isinstance(self.command, str) else shlex.join(self.command)


def replace_fields(text: str, fields: Mapping[str, str]) -> str:
    """Replace {seed}, {out} and {variant}; any other braces are left unchanged."""
    for field, value in fields.items():
        text = text.replace(field, value)
    return text


class VersusConfig(BaseConfig):
    """A comparison of commands."""

    question: str = ""
    """the question that the comparison answers"""
    metric: MetricConfig
    """what is compared"""
    baseline: CommandConfig
    """the command that the variants are compared with"""
    variants: dict[str, CommandConfig] = Field(min_length=1)
    """name = command"""
    seeds: SmallCount = 5
    """seeds per variant"""
    first_seed: Annotated[int, Field(ge=0)] = 0
    """the first seed"""
    equivalence_margin: Annotated[float, Field(ge=0)] = 0.0
    """smaller changes count as no practical difference: relative for perplexity, in units of the metric otherwise"""
    shell: bool = False
    """run the commands with /bin/sh"""
    timeout: Annotated[float, Field(gt=0)] | None = None
    """seconds after which a run is ended and counts as failed"""
    retries: Annotated[int, Field(ge=0, le=100)] = 0
    """how often a run that fails with an exit code is repeated"""
    repeat: bool = True
    """run the baseline's first seed twice, to see whether equal seeds give equal values"""
    is_noise: bool = False
    """the same command on both sides, with disjoint seeds"""

    @field_validator("variants")
    @classmethod
    def _check_names(cls, variants: dict[str, CommandConfig]) -> dict[str, CommandConfig]:
        """Raise ValueError for names that are reserved or are not valid folder names."""
        for name in variants:
            if not FOLDER_NAME_PATTERN.fullmatch(name):
                raise ValueError(f"{name!r} {FOLDER_NAME_RULE}")
            if name == BASELINE:
                raise ValueError(f"{name!r} is the name of the baseline")
        return variants

    @model_validator(mode="after")
    def _check_commands(self) -> VersusConfig:
        """Raise ValueError for commands that are empty, cannot be split, or do not use the seed."""
        errors = []
        for name, variant in self.commands.items():
            try:
                words = shlex.split(variant.text)
            except ValueError as error:
                errors.append(f"{name}: the command cannot be split into words: {error}")
                continue
            if not words:
                errors.append(f"{name}: the command is empty")
            elif not uses_seed(variant):
                errors.append(
                    f"{name}: the command has no {SEED_FIELD}; add it, for example `--seed {SEED_FIELD}`, or set an "
                    f'environment variable that the script reads: env.SEED = "{SEED_FIELD}"'
                )
        if errors:
            raise ValueError("; ".join(errors))
        return self

    @property
    def commands(self) -> dict[str, CommandConfig]:
        """The commands of the baseline and all variants, keyed by name."""
        return {BASELINE: self.baseline, **self.variants}

    def list_seeds(self, variant: str) -> range:
        """Return a variant's seeds. In a noise measurement, the two sides have disjoint seeds."""
        offset = self.seeds if self.is_noise and variant != BASELINE else 0
        return range(self.first_seed + offset, self.first_seed + offset + self.seeds)

    def list_runs(self) -> list[tuple[str, int]]:
        """Return the variant and seed of every run, interleaved so that slow drift affects all variants equally."""
        return [(name, self.list_seeds(name)[index]) for index in range(self.seeds) for name in self.commands]


def uses_seed(variant: CommandConfig) -> bool:
    """Return whether the command or its environment refers to the seed."""
    return SEED_FIELD in variant.text or any(SEED_FIELD in value for value in variant.env.values())


def read_comparison_file(path: Path) -> dict[str, Any]:
    """Return a comparison file's content as plain values."""
    try:
        raw = path.read_bytes()
        if len(raw) > MAX_FILE_BYTES:
            raise ValueError(f"has {len(raw):,} bytes, the limit is {MAX_FILE_BYTES:,}")
        return parse_toml(raw.decode())
    except OSError as error:
        raise RequestError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(str(path), [ValidationIssue("the file", str(error))]) from None


def build_comparison(values: Mapping[str, Any], source: str) -> VersusConfig:
    """Validate a comparison. Raise a ConfigError that lists every error."""
    values = dict(values)
    if isinstance(values.get("metric"), str):
        values["metric"] = {"name": values["metric"]}
    if isinstance(values.get("baseline"), str | list):
        values["baseline"] = {"command": values["baseline"]}
    if isinstance(variants := values.get("variants"), dict):
        values["variants"] = {
            name: variant if isinstance(variant, dict) else {"command": variant} for name, variant in variants.items()
        }
    try:
        return VersusConfig.model_validate(values)
    except ValidationError as error:
        issues = [
            ValidationIssue(".".join(map(str, item["loc"])) or "the file", item["msg"].removeprefix("Value error, "))
            for item in error.errors(include_url=False)
        ]
        raise ConfigError(source, issues) from None
