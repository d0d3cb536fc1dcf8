"""The settings of a trial: those of the experiment with the changes of one variant, and a seed."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from headtohead.config.experiment import BASELINE, Experiment, Trial
from headtohead.config.overlays import VARIANT_TABLES, apply_variant
from headtohead.config.validation.error_messages import convert_pydantic_error
from headtohead.config.variant_changes import build_variant_changes
from headtohead.errors import ConfigError


def diff_settings_from_baseline(experiment: Experiment, variant: str) -> dict[str, Any]:
    """Return the settings in which trials of a variant differ from those of the baseline, by dotted name.

    Settings that the variant sets to the baseline's value, as a search winner may, are omitted.
    """
    changes = experiment.variants.get(variant)
    if not changes:
        return {}
    trial, baseline = (build_trial(experiment, name, 0).model_dump(mode="json") for name in (variant, BASELINE))
    changed_values = {(table, key): value for table, settings in changes.items() for key, value in settings.items()}
    for setting in (*experiment.tuned.get(variant, ()), *experiment.tuned.get(BASELINE, ())):
        table, key = setting.split(".")[:2]
        changed_values[table, key] = trial[table].get(key)
    return {
        f"{table}.{key}": value
        for (table, key), value in changed_values.items()
        if trial[table].get(key) != baseline[table].get(key)
    }


def build_trial(experiment: Experiment, variant: str, seed: int) -> Trial:
    """Return all settings of the trial of one variant (or the baseline) and one seed."""
    raw = experiment.model_dump(mode="json", include={*VARIANT_TABLES})
    merged_config = apply_variant(raw, experiment.variants[variant]) if variant != BASELINE else raw
    if tuned_settings := experiment.tuned.get(variant):
        merged_config = apply_variant(merged_config, build_variant_changes(merged_config, tuned_settings))
    teacher = None if experiment.teacher is None else experiment.teacher.model_dump(mode="json")
    if "pretrained" in merged_config["model"]:
        # The tokenizer settings include every setting that changes the token ids.
        model = merged_config["model"]
        tokenizer = {"kind": "pretrained", "model": model["pretrained"], "max_length": model["max_length"]}
        prompt_keys = ("prompt", "use_chat_template", "documents", "max_new_tokens")
        merged_config["data"]["tokenizer"] = tokenizer | ({key: teacher[key] for key in prompt_keys} if teacher else {})
    trial_settings = {
        **merged_config,
        "task": experiment.task,
        "variant": variant,
        "seed": seed,
        "plugins": experiment.plugins,
        "probe": experiment.probe.model_dump(mode="json"),
        "teacher": teacher,
    }
    try:
        return Trial.model_validate(trial_settings)
    except ValidationError as error:  # an experiment.json that was edited
        issues = [convert_pydantic_error(details) for details in error.errors()]
        raise ConfigError(f"{experiment.name}, variant {variant}", issues) from None
