"""Settings of a comparison: the keys of comparison files (`h2h versus comparison.toml`), which command lines map to."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from difflib import SequenceMatcher
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from headtohead.config.base import FOLDER_NAME_PATTERN, FOLDER_NAME_RULE, BaseConfig, SmallCount
from headtohead.config.experiment import BASELINE
from headtohead.config.toml import MAX_FILE_BYTES, parse_toml
from headtohead.errors import ConfigError, RequestError, ValidationIssue
from headtohead.verdict.metric import MetricName

MAX_CHANGE_CHARACTERS = 100
"""the question does not name a change of a command that is longer"""

Direction = Literal["minimize", "maximize"]
Aggregation = Literal["last", "best", "mean"]
MINIMIZED_METRIC_WORD = re.compile(
    r"([a-z]*(loss|losses|perplexity|error)|ppl|errors|err|nll|bits|bpb|bpc|wer|cer|r?mse|mae|time|seconds|latency)\d*"
)
MAXIMIZED_METRIC_WORD = re.compile(
    r"([a-z]*(accuracy|score)|acc|f1|bleu|rouge|auc|auroc|precision|recall|reward|return|r2|mcc)\d*"
)
"""words in a metric's name that tell its direction"""
SEED_PLACEHOLDER = "{seed}"
OUT_PLACEHOLDER = "{out}"
VARIANT_PLACEHOLDER = "{variant}"
SHELL = ("/bin/sh", "-c")


class MetricConfig(BaseConfig):
    """Which metric is compared, where each run reports it, and how its values become one score per run."""

    name: str = Field(min_length=1)
    """name of the metric, as the script writes it"""
    direction: Direction | None = None
    """whether lower values are better (minimize) or higher ones (maximize); inferred from names such as val_loss"""
    file: str | None = None
    """file with the metric (.json, .jsonl or .csv), or folder with TensorBoard, W&B or trackio logs. {seed}, {out} and
    {variant} are replaced. By default, the metric is read from the command's output."""
    pattern: str | None = None
    """regular expression that finds the metric in the command's output; its only capturing group matches the value"""
    aggregate: Aggregation = "last"
    """what is compared if a run reports several values: the last, the best, or the mean of the last `window`"""
    window: SmallCount = 5
    """aggregate = "mean": number of values that are averaged"""
    metric_for_best_step: str | None = None
    """aggregate = "best": a second metric of the script, such as val_loss, whose best value selects the step"""
    example_scores: str | None = None
    """file with one score per example (.csv or .jsonl): columns example and score, optionally weight and document"""

    @field_validator("pattern")
    @classmethod
    def _check_pattern(cls, pattern: str | None) -> str | None:
        """Raise ValueError unless the pattern is a regular expression with exactly one capturing group."""
        if pattern is not None:
            try:
                num_groups = re.compile(pattern).groups
            except re.error as error:
                raise ValueError(f"is not a regular expression: {error}") from None
            if num_groups != 1:
                raise ValueError(f"needs exactly one capturing group, which matches the value; has {num_groups}")
        return pattern

    @field_validator("example_scores")
    @classmethod
    def _check_example_scores(cls, example_scores: str | None) -> str | None:
        """Raise ValueError if runs would write their scores outside of their folders, over those of other runs."""
        if example_scores is not None and OUT_PLACEHOLDER not in example_scores:
            raise ValueError(f"{example_scores} needs {OUT_PLACEHOLDER}, so that every run writes its own file")
        return example_scores

    @model_validator(mode="after")
    def _check_direction(self) -> MetricConfig:
        """Raise ValueError if it is unknown which values are better, or if a metric selects a step that is not used."""
        if self.metric_for_best_step is not None and self.aggregate != "best":
            raise ValueError(f'metric_for_best_step needs aggregate = "best", got {self.aggregate!r}')
        if self.direction is None and infer_direction(self.name) is None:
            raise ValueError(
                f"direction is needed: minimize if lower values of {self.name!r} are better, otherwise maximize"
            )
        return self

    @property
    def lower_is_better(self) -> bool:
        return (self.direction or infer_direction(self.name)) == "minimize"

    @property
    def is_file_shared_by_runs(self) -> bool:
        """Whether several runs write the metric to the same file or folder."""
        if self.file is None or OUT_PLACEHOLDER in self.file:
            return False
        return SEED_PLACEHOLDER not in self.file or VARIANT_PLACEHOLDER not in self.file

    @property
    def verdict_metric(self) -> MetricName:
        """The kind of metric that the verdict needs: changes of a perplexity are relative, all others differences."""
        words = split_metric_name(self.name)
        if self.lower_is_better and {"perplexity", "ppl"} & set(words) and "log" not in words:
            return "perplexity"
        return "loss" if self.lower_is_better else "score"


def split_metric_name(name: str) -> list[str]:
    """Return the words of a metric's name in lower case: `eval/topAcc_loss` consists of eval, top, acc and loss."""
    return re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", re.sub(r"[^A-Za-z0-9]+", " ", name)).lower().split()


def infer_direction(name: str) -> Direction | None:
    """Infer the default of the setting `metric.direction` from a metric's name: whether lower values are better.
    Return None if no word of the name tells, or if its words contradict each other, as in acc_loss.
    """
    words = split_metric_name(name)
    is_minimized = any(map(MINIMIZED_METRIC_WORD.fullmatch, words))
    is_maximized = any(map(MAXIMIZED_METRIC_WORD.fullmatch, words))
    return None if is_minimized == is_maximized else "minimize" if is_minimized else "maximize"


class CommandConfig(BaseConfig):
    """The command of the baseline or of a variant, optionally in a git revision."""

    command: str | tuple[str, ...]
    """command line; {seed}, {out} and {variant} are replaced"""
    revision: str | None = None
    """git revision to run it in; "." is the working tree with its uncommitted changes"""
    env: dict[str, str] = Field(default_factory=dict)
    """environment variables; {seed}, {out} and {variant} are replaced"""

    def build_process_arguments(self, placeholder_values: Mapping[str, str], *, use_shell: bool) -> tuple[str, ...]:
        """Return the arguments of a run's process, with {seed}, {out} and {variant} replaced."""
        if use_shell:
            quoted_values = {placeholder: shlex.quote(value) for placeholder, value in placeholder_values.items()}
            return (*SHELL, replace_placeholders(self.command_line, quoted_values))
        return tuple(replace_placeholders(word, placeholder_values) for word in self.command_words)

    @property
    def command_words(self) -> tuple[str, ...]:
        """The command line, split into words as a shell does."""
        return tuple(shlex.split(self.command)) if isinstance(self.command, str) else self.command

    @property
    def command_line(self) -> str:
        """The command as a user would type it."""
        return self.command if isinstance(self.command, str) else shlex.join(self.command)


def replace_placeholders(text: str, placeholder_values: Mapping[str, str]) -> str:
    """Replace {seed}, {out} and {variant} in a command or path; other braces do not change."""
    for placeholder, value in placeholder_values.items():
        text = text.replace(placeholder, value)
    return text


class VersusConfig(BaseConfig):
    """A comparison of commands."""

    question: str = ""
    """the question that the comparison answers"""
    metric: MetricConfig
    """the metric that is compared"""
    baseline: CommandConfig
    """the command that the variants are compared with"""
    variants: dict[str, CommandConfig] = Field(min_length=1)
    """command of each variant, by name"""
    seeds: SmallCount = 5
    """seeds per variant"""
    first_seed: Annotated[int, Field(ge=0)] = 0
    """the first seed"""
    equivalence_margin: Annotated[float, Field(ge=0)] = 0.0
    """changes within this margin are no practical difference: relative for perplexity, else in the metric's units"""
    shell: bool = False
    """run the commands with /bin/sh"""
    timeout: Annotated[float, Field(gt=0)] | None = None
    """seconds after which a run is ended and counts as failed"""
    retries: Annotated[int, Field(ge=0, le=100)] = 0
    """how often a run is started again if it fails with an exit code"""
    check_determinism: bool = True
    """run the baseline's first seed twice, to see whether equal seeds give equal values"""
    unseeded: bool = False
    """the commands take no {seed}, because every run draws its own; runs are then compared without pairing"""
    links: tuple[str, ...] = ()
    """files and folders that git does not track, such as data sets: linked into the worktree of each revision"""
    is_aa_test: bool = False
    """baseline and variant are the same command, run with disjoint seeds, to estimate its noise (an A/A test)"""

    @field_validator("variants")
    @classmethod
    def _check_variant_names(cls, variants: dict[str, CommandConfig]) -> dict[str, CommandConfig]:
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
        errors, without_seed = [], []
        for name, variant in self.commands.items():
            try:
                words = shlex.split(variant.command_line)
            except ValueError as error:
                errors.append(f"{name}: the command cannot be split into words: {error}")
                continue
            if not words:
                errors.append(f"{name}: the command is empty")
            elif not self.unseeded and not uses_seed(variant):
                without_seed.append(name)
        if without_seed:
            errors.append(
                f"{', '.join(without_seed)}: the command has no {SEED_PLACEHOLDER}; add it, for example "
                f"`--seed {SEED_PLACEHOLDER}`, or pass it in an environment variable that the script reads: "
                f"--env SEED={SEED_PLACEHOLDER}. If the script sets no seed, so that every run is different: --unseeded"
            )
        if errors:
            raise ValueError("; ".join(errors))
        return self

    @property
    def commands(self) -> dict[str, CommandConfig]:
        """The commands of the baseline and all variants, keyed by name."""
        return {BASELINE: self.baseline, **self.variants}

    @property
    def is_paired(self) -> bool:
        """Whether baseline and variants run with the same seeds. Those of an A/A test and of unseeded runs do not."""
        return not self.is_aa_test and not self.unseeded

    def list_seeds(self, variant: str) -> range:
        """Return the seeds of the baseline or a variant. Without pairing, no two of them have a seed in common."""
        if self.is_paired:
            return range(self.first_seed, self.first_seed + self.seeds)
        first, step = self.first_seed + list(self.commands).index(variant), len(self.commands)
        return range(first, first + self.seeds * step, step)

    def list_planned_runs(self) -> list[tuple[str, int]]:
        """Return the variant and seed of every planned run, in the order in which they start.

        Baseline and variants take turns, and every second seed reverses their order, so that a drift, such as that of a
        machine that gets slower, affects all of them equally.
        """
        planned_runs = []
        for index in range(self.seeds):
            names = list(self.commands) if index % 2 == 0 else reversed(self.commands)
            planned_runs += [(name, self.list_seeds(name)[index]) for name in names]
        return planned_runs


def uses_seed(command: CommandConfig) -> bool:
    """Return whether a command or its environment contains {seed}."""
    return SEED_PLACEHOLDER in command.command_line or any(SEED_PLACEHOLDER in value for value in command.env.values())


def read_comparison_file(path: Path) -> dict[str, Any]:
    """Return a comparison file's settings, not yet validated."""
    try:
        content = path.read_bytes()
        if len(content) > MAX_FILE_BYTES:
            raise ValueError(f"has {len(content):,} bytes, the limit is {MAX_FILE_BYTES:,}")
        return parse_toml(content.decode())
    except OSError as error:
        raise RequestError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(str(path), [ValidationIssue("the file", str(error))]) from None


def build_comparison_config(settings: Mapping[str, Any], origin: str) -> VersusConfig:
    """Validate the settings of a comparison, in which a metric may be a name and a variant a command.

    Raise a ConfigError that lists every error. `origin` is the file or command that the error message names.
    """
    settings = dict(settings)
    if isinstance(settings.get("metric"), str):
        settings["metric"] = {"name": settings["metric"]}
    if isinstance(settings.get("baseline"), str | list):
        settings["baseline"] = {"command": settings["baseline"]}
    if isinstance(variants := settings.get("variants"), dict):
        settings["variants"] = {
            name: variant if isinstance(variant, dict) else {"command": variant} for name, variant in variants.items()
        }
    try:
        return VersusConfig.model_validate(settings)
    except ValidationError as error:
        issues = [
            ValidationIssue(
                ".".join(map(str, item["loc"])) or "the comparison", item["msg"].removeprefix("Value error, ")
            )
            for item in error.errors(include_url=False)
        ]
        raise ConfigError(origin, issues) from None


def build_command_settings(
    commands: list[str], revisions: tuple[str, str] | None, env: dict[str, str], *, noise: bool
) -> dict[str, Any]:
    """Return the settings of a comparison file with the same meaning as the commands and options of a command line."""
    if noise:
        if len(commands) != 1:
            raise RequestError(f"--noise compares one command with itself, got {len(commands)}")
        command = {"command": commands[0], "env": env}
        return {"baseline": command, "variants": {"repeated": command}, "is_aa_test": True}
    if revisions is not None:
        command = {"command": commands[0] if len(commands) == 1 else commands, "env": env}
        baseline_revision, variant_revision = revisions
        folder_name = re.sub(r"[^\w.+-]", "-", variant_revision).strip(".-") or "changes"
        variant = folder_name if folder_name != BASELINE else "variant"
        return {
            "baseline": {**command, "revision": baseline_revision},
            "variants": {variant: {**command, "revision": variant_revision}},
            "question": f"Does {variant_revision} improve on {baseline_revision}?",
        }
    if len(commands) < 2:
        raise RequestError("a comparison needs a baseline and at least one variant, or --revisions, or --noise")
    names = ["variant"] if len(commands) == 2 else [f"variant-{index}" for index in range(1, len(commands))]
    variants = dict(zip(names, commands[1:], strict=True))
    return {
        "baseline": {"command": commands[0], "env": env},
        "variants": {name: {"command": command, "env": env} for name, command in variants.items()},
        "question": _phrase_question_from_commands(commands[0], variants),
    }


def _phrase_question_from_commands(baseline: str, variants: dict[str, str]) -> str:
    """Return the default of the setting `question`: does it help to add these words to the baseline's command?

    Return "" if the commands cannot be compared word by word.
    """
    try:
        changes = {
            name: _describe_changed_words(shlex.split(baseline), shlex.split(command))
            for name, command in variants.items()
        }
    except ValueError:  # an unclosed quotation mark, which validation reports
        return ""
    if not all(changes.values()):
        return ""
    named_changes = [f"{name} ({change})" for name, change in changes.items()]
    (first_change, *further_changes) = changes.values()
    if further_changes:
        return f"Do these changes help: {', '.join(named_changes)}?"
    return f"Does it help to run {first_change}?"


def _describe_changed_words(baseline_words: list[str], variant_words: list[str]) -> str:
    """Return the change of a command for the default question, such as "with --lr 0.1", or "without" removed words."""
    added, removed = [], []
    matcher = SequenceMatcher(None, baseline_words, variant_words, False)
    for kind, baseline_start, baseline_stop, variant_start, variant_stop in matcher.get_opcodes():
        if kind != "equal":
            # A changed value is shown with its option.
            has_option = kind == "replace" and variant_start and variant_words[variant_start - 1].startswith("-")
            added += variant_words[variant_start - 1 if has_option else variant_start : variant_stop]
            removed += baseline_words[baseline_start:baseline_stop]
    changed_words, preposition = (added, "with") if added else (removed, "without")
    change = shlex.join(changed_words)
    return f"{preposition} {change}" if change and len(change) <= MAX_CHANGE_CHARACTERS else ""
