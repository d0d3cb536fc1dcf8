"""Load an experiment file, or a dict with its keys, into a validated `Experiment`.

`config.parse_experiment` parses the file and validates types. This module adds what needs the registries and the disk:
it imports the user's plugins, makes paths absolute, and checks the names and options of parts, tokenizers, corpus
sources and strategies. All errors are reported at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headtohead.config import experiment, parse_experiment
from headtohead.config.overlays import RawConfig
from headtohead.config.validation.validate_experiment import validate_experiment
from headtohead.data.sources.loading import resolve_source_path
from headtohead.experiment import trust
from headtohead.experiment.provenance.user_files import find_code_files
from headtohead.experiment.settings.path_resolution import list_plugin_files, resolve_paths
from headtohead.experiment.settings.registry_checks import check_registered_names
from headtohead.nn.parts import registry


def load_experiment(
    recipe_or_file: str | Path,
    settings: Sequence[str] = (),
    *,
    plugins: Sequence[str | Path] = (),
    data_source: str | Path | None = None,
    use_full_setting: bool = False,
    use_quick_setting: bool = False,
    only: Sequence[str] = (),
) -> experiment.Experiment:
    """Load an experiment from a recipe or file, with custom parts and all checks against the registries.

    Args:
        recipe_or_file: Name of a recipe, or path of an experiment file.
        settings: Overrides of the form "name=value".
        plugins: Python files that define additional parts.
        data_source: Replaces the corpus source. If it is the recipe's original data, the recipe's settings for that
            data are applied; otherwise, settings that only apply to the recipe's own data are removed.
        use_full_setting: Use the recipe's full setting.
        use_quick_setting: Reduce the experiment to a quick look.
        only: Variants to keep; all if empty.
    """

    def import_plugins(raw: RawConfig, file_folder: Path) -> None:
        """Import plugins, resolve paths and replace the data source before validation."""
        plugin_files = [*list_plugin_files(raw, file_folder), *(str(Path(file).resolve()) for file in plugins)]
        _load_plugins(raw, plugin_files)
        resolve_paths(raw, file_folder)
        if data_source is not None:
            raw.setdefault("data", {})["source"] = resolve_source_path(str(data_source), Path("."))

    uses_other_data = data_source is not None and str(data_source) != "sotu"
    parsed_experiment = parse_experiment.parse_experiment(
        recipe_or_file,
        settings,
        data_folder=Path(str(data_source)).expanduser() if uses_other_data else None,
        full=use_full_setting,
        quick=use_quick_setting,
        only=only,
        find_part_issues=check_registered_names,
        import_plugins=import_plugins,
    )
    trust.trust_files(find_code_files(parsed_experiment).values())
    return parsed_experiment


def build_experiment(raw: dict[str, Any], name: str = "experiment") -> experiment.Experiment:
    """Load an experiment from a dict with the keys of an experiment file, with the same checks as for a file.

    Relative paths refer to the current folder.
    """
    current_folder = Path(".")
    _load_plugins(raw, list_plugin_files(raw, current_folder))
    resolve_paths(raw, current_folder)
    built_experiment = validate_experiment(raw, name, find_part_issues=check_registered_names)
    trust.trust_files(find_code_files(built_experiment).values())
    return built_experiment


def _load_plugins(raw: RawConfig, plugin_files: Sequence[str]) -> None:
    """Import an experiment's plugins, which register the parts that other settings name, and store their paths."""
    if plugin_files:
        raw["plugins"] = [str(registry.load_plugin(file)) for file in plugin_files]
