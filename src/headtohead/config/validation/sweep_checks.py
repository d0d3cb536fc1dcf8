"""Checks of the [sweep] table that can be performed before training."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError

from headtohead.config.overlays import VARIANT_TABLES, RawConfig, flatten_settings
from headtohead.config.tables.sweep import CORPUS_AXIS, MAX_CELLS, SIZE_AXIS, SweepAxis, SweepConfig, format_axis_label
from headtohead.config.variant_changes import ChangeCheck, build_cell_changes
from headtohead.errors import ValidationIssue


def check_sweep(raw_config: RawConfig, check_changes: ChangeCheck) -> list[ValidationIssue]:
    """Return the issues of the [sweep] table. `check_changes` validates the changes of one axis value."""
    try:
        sweep = SweepConfig.model_validate(raw_config.get("sweep"))
    except ValidationError:
        return []  # reported when the table itself is validated
    issues = [*_check_sweep_structure(raw_config, sweep)]
    if not issues:
        issues = [*_check_axis_values(raw_config, sweep, check_changes)]
    return list({(issue.location, issue.message): issue for issue in issues}.values())


def _check_sweep_structure(raw: RawConfig, sweep: SweepConfig) -> Iterator[ValidationIssue]:
    """Yield issues of the sweep's axes, the number of cells, the cells' names and the variants."""
    yield from _check_sweep_axes(sweep)
    if sweep.count_cells() > MAX_CELLS:
        yield ValidationIssue("sweep", f"has {sweep.count_cells():,} cells; at most {MAX_CELLS:,} are allowed")
    elif sweep.count_cells() < 2:
        yield ValidationIssue("sweep", "needs at least two cells, as in training.optimizer.lr = [3e-4, 1e-3]")
    elif len({cell.name for cell in sweep.list_cells()}) < sweep.count_cells():
        yield ValidationIssue(
            "sweep", "has several cells with the same folder name; use different names for the values"
        )
    yield from _check_swept_variants(raw, sweep.list_axes())


def _check_sweep_axes(sweep: SweepConfig) -> Iterator[ValidationIssue]:
    """Yield issues of the settings, sizes and corpora over which the comparison is repeated."""
    for setting, values in sweep.settings.items():
        if len({format_axis_label(value) for value in values}) < len(values):
            yield ValidationIssue(f"sweep.{setting}", "lists the same value twice")
        if setting.partition(".")[0] not in VARIANT_TABLES or "." not in setting:
            yield ValidationIssue(f"sweep.{setting}", "is not a setting of data, model or training", VARIANT_TABLES)
        if setting.startswith("data.source"):
            yield ValidationIssue(f"sweep.{setting}", "corpora are listed in sweep.corpora")
    for name, changes in sweep.sizes.items():
        for setting in flatten_settings(changes):
            if setting.partition(".")[0] not in ("model", "training"):
                yield ValidationIssue(f"sweep.sizes.{name}", f"{setting} is not a setting of model or training")
    for name, data in sweep.corpora.items():
        if not isinstance(data.get("source"), str | list | tuple):
            yield ValidationIssue(f"sweep.corpora.{name}", 'needs a source, as in { source = "texts/news" }')


def _check_swept_variants(raw: RawConfig, axes: list[SweepAxis]) -> Iterator[ValidationIssue]:
    """Yield an issue for every variant that overrides a swept setting, because the sweep would have no effect on it."""
    variants = raw.get("variants")
    for name, changes in variants.items() if isinstance(variants, dict) else ():
        changed_settings = flatten_settings(changes) if isinstance(changes, dict) else {}
        for axis in axes:
            for change in axis.values.values():
                for setting in flatten_settings(change):
                    if any(_change_same_key(setting, changed_setting) for changed_setting in changed_settings):
                        message = f"variants.{name} overrides {setting}, so the sweep would not change it"
                        yield ValidationIssue(f"sweep.{axis.name}", message)


def _change_same_key(setting_a: str, setting_b: str) -> bool:
    """Return whether two dotted settings change the same key of a table. Options of a part count as the part."""
    key_a, key_b = (".".join(setting.split(".")[:2]) for setting in (setting_a, setting_b))
    return key_a == key_b


def _check_axis_values(raw: RawConfig, sweep: SweepConfig, check_changes: ChangeCheck) -> Iterator[ValidationIssue]:
    """Yield the issues of every value of every sweep axis. Corpora are checked later, when they are read."""
    for axis in sweep.list_axes():
        if axis.name == CORPUS_AXIS:
            continue
        for label, change in axis.values.items():
            for issue in check_changes(build_cell_changes(raw, axis.name, change)):
                location = f"sweep.sizes.{label}" if axis.name == SIZE_AXIS else f"sweep.{axis.name}"
                yield ValidationIssue(location, f"{label}: {issue.message}", issue.allowed, issue.suggestion)
