"""`headtohead.Experiment`: a validated experiment that Python code can vary, plan and save as TOML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headtohead.config import experiment as config_experiment
from headtohead.config.overlays import RawConfig, nest_dotted_keys
from headtohead.config.toml import format_toml_document
from headtohead.experiment import loading
from headtohead.runner.plan import ExperimentPlan, plan_experiment


class Experiment(config_experiment.Experiment):
    """A validated, immutable experiment: a question, a baseline, variants and seeds."""

    def with_variant(self, name: str, changes: Mapping[str, Any]) -> Experiment:
        """Return a copy of the experiment with an added variant, or a replaced one if the name exists.

        Args:
            name: Name of the variant, used as a folder name.
            changes: Settings that the variant changes, as {"model.position": "alibi"} or
                {"model": {"position": "alibi"}}.
        """
        raw_config = self._to_raw()
        raw_config["variants"] = {**raw_config.get("variants", {}), name: dict(changes)}
        return experiment_from_dict(raw_config, self.name)

    def with_settings(self, settings: Mapping[str, Any]) -> Experiment:
        """Return a copy of the experiment with changed settings for the baseline and all variants.

        Args:
            settings: Dotted names and values, as {"training.budget": "100 steps"}.
        """
        raw_config = self._to_raw()
        for dotted_name, value in settings.items():
            *table_names, key = dotted_name.split(".")
            table = raw_config
            for table_name in table_names:
                table = table.setdefault(table_name, {})
            table[key] = value
        return experiment_from_dict(raw_config, self.name)

    def plan(self, workers: int | None = None) -> ExperimentPlan:
        """Return model sizes and estimated times, measured by running a few training steps of every variant."""
        return plan_experiment(self, workers)

    def to_toml(self) -> str:
        """Return the experiment in the format of experiment files. Settings with default values are omitted."""
        return format_toml_document(self._to_raw())

    def _to_raw(self) -> RawConfig:
        """Return the settings that differ from their defaults, as in an experiment file."""
        return self.model_dump(mode="json", exclude_defaults=True, exclude_none=True, exclude={"name"})

    def __repr__(self) -> str:
        variants = ", ".join(self.variants) or "no variants"
        return f"<experiment {self.name!r}: {self.question} baseline against {variants}; {self.seeds} seeds>"

    __str__ = __repr__


def load_experiment(
    recipe_or_file: str | Path,
    settings: Sequence[str] = (),
    *,
    plugins: Sequence[str | Path] = (),
    data_source: str | Path | None = None,
    use_full_setting: bool = False,
    use_quick_setting: bool = False,
    only: Sequence[str] = (),
) -> Experiment:
    """Load an experiment from a recipe or file for the Python API.

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
    loaded_experiment = loading.load_experiment(
        recipe_or_file,
        settings,
        plugins=plugins,
        data_source=data_source,
        use_full_setting=use_full_setting,
        use_quick_setting=use_quick_setting,
        only=only,
    )
    return add_api_methods(loaded_experiment)


def experiment_from_dict(raw: Mapping[str, Any], name: str = "experiment") -> Experiment:
    """Build an experiment for the Python API from a dict with the keys of an experiment file, nested or dotted.

    Args:
        raw: Settings, as {"model": {"width": 64}} or {"model.width": 64}.
        name: Name of the experiment, used as a folder name.
    """
    return add_api_methods(loading.build_experiment(nest_dotted_keys(raw), name))


def add_api_methods(experiment: config_experiment.Experiment) -> Experiment:
    """Return a validated experiment as an instance of the class that has the methods of the Python API."""
    return Experiment.model_construct(experiment.model_fields_set, **dict(experiment))
