"""Parse a recipe or an experiment file: read it, apply overlays (`[full]`, `--quick`, `--set`) and validate it.

All issues are reported together, each with its line number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from headtohead.config.experiment import Experiment
from headtohead.config.experiment_file import add_line_number, read_experiment_file
from headtohead.config.overlays import (
    RawConfig,
    RawExperiment,
    adapt_to_other_data,
    apply_full_table,
    apply_original_setup,
    apply_overrides,
    drop_overlay_tables,
)
from headtohead.config.recipe_catalog import find_recipe, list_recipes
from headtohead.config.reduction import apply_quick_mode, select_variants
from headtohead.config.tables.report_text import ReportText
from headtohead.config.validation.error_messages import convert_pydantic_error
from headtohead.config.validation.validate_experiment import PartIssueFinder, build_checked_experiment
from headtohead.errors import ConfigError, RequestError


def read_raw_experiment(recipe_or_file: str | Path) -> RawExperiment:
    """Find a recipe by name, or an experiment file, and read it without parsing its settings any further."""
    path = Path(recipe_or_file)
    if not path.is_file():
        if path.suffix == ".toml" or path.name != str(recipe_or_file):
            raise RequestError(f"{path}: no such file")
        path = find_recipe(str(recipe_or_file))
    return read_experiment_file(path)


def parse_experiment(
    recipe_or_file: str | Path,
    overrides: Sequence[str] = (),
    *,
    data_folder: Path | None = None,
    full: bool = False,
    quick: bool = False,
    only: Sequence[str] = (),
    find_part_issues: PartIssueFinder | None = None,
    import_plugins: Callable[[RawConfig, Path], None] | None = None,
) -> Experiment:
    """Parse a recipe or an experiment file: read it, apply overlays and validate the result.

    Overlays are applied in the order of the arguments below.

    Args:
        recipe_or_file: Name of a recipe, or path of an experiment file.
        data_folder: Folder with the user's data. If it contains the files of `[original]`, that table is applied;
            otherwise settings that only apply to the recipe's data are removed.
        full: Apply the `[full]` table.
        only: Variants to keep; all if empty.
        quick: Reduce the experiment to a quick look.
        overrides: Settings of the form `key=value`, applied last.
        find_part_issues: Callback that returns issues of part names and options.
        import_plugins: Callback that imports custom parts before validation. Receives the settings and the file's
            folder, and may change the settings.

    Raises:
        ConfigError: If the file is invalid. The error lists every issue.
    """
    raw_experiment = read_raw_experiment(recipe_or_file)
    if data_folder is not None:
        raw_experiment = _adapt_to_data_folder(raw_experiment, data_folder)
    raw_experiment = apply_full_table(raw_experiment) if full else raw_experiment
    raw_experiment = select_variants(raw_experiment, only) if only else raw_experiment
    raw_experiment = apply_quick_mode(raw_experiment) if quick else raw_experiment
    raw_experiment = apply_overrides(drop_overlay_tables(raw_experiment), overrides)
    if import_plugins:
        import_plugins(raw_experiment.raw_config, Path(raw_experiment.source).parent)
    experiment, issues = build_checked_experiment(raw_experiment.raw_config, raw_experiment.name, find_part_issues)
    if issues or experiment is None:
        overridden_keys = {override.partition("=")[0].strip() for override in overrides}
        issues = [add_line_number(issue, raw_experiment.line_numbers, overridden_keys) for issue in issues]
        raise ConfigError(raw_experiment.source, issues)
    return experiment


def _adapt_to_data_folder(raw_experiment: RawExperiment, data_folder: Path) -> RawExperiment:
    """Adapt a parsed file to `--data`: apply `[original]` if the folder has its files, else drop data of the recipe."""
    original = raw_experiment.raw_config.get("original")
    original_files = original.get("files", ()) if isinstance(original, dict) else ()
    if original_files and all((data_folder / str(name)).is_file() for name in original_files):
        return apply_original_setup(raw_experiment)
    is_recipe = Path(raw_experiment.source).parent == find_recipe(list_recipes()[0]).parent
    return adapt_to_other_data(raw_experiment) if is_recipe else raw_experiment


def read_report_texts(path: Path) -> tuple[ReportText, ...]:
    """Parse only the `[[text]]` blocks of an experiment file; raise `ConfigError` if they are invalid."""
    raw_experiment = read_raw_experiment(path)
    try:
        return TypeAdapter(tuple[ReportText, ...]).validate_python(tuple(raw_experiment.raw_config.get("text", ())))
    except ValidationError as error:
        issues = [convert_pydantic_error({**details, "loc": ("text", *details["loc"])}) for details in error.errors()]
        issues = [add_line_number(issue, raw_experiment.line_numbers, set()) for issue in issues]
        raise ConfigError(str(path), issues) from None
