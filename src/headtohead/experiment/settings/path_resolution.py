"""Make the paths in an experiment file absolute before the file is validated.

Relative paths in a file refer to the folder of that file, so that an experiment can be run from any folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headtohead.config.overlays import RawConfig
from headtohead.data.sources.loading import resolve_source_path


def list_plugin_files(raw: RawConfig, base_folder: Path) -> list[str]:
    """Return the absolute paths of the Python files in an experiment's setting `plugins`."""
    files = raw.get("plugins")
    if not isinstance(files, list):
        return []  # reported by the validation
    return [str((base_folder / file).resolve()) for file in files if isinstance(file, str)]


def resolve_paths(raw: RawConfig, base_folder: Path) -> None:
    """Make all paths in raw experiment settings absolute, in place: those of the baseline and of every variant."""
    tables = [raw, *(changes for changes in _get_table(raw, "variants").values() if isinstance(changes, dict))]
    for table in tables:
        model, data, sweep, teacher = (_get_table(table, name) for name in ("model", "data", "sweep", "teacher"))
        if isinstance(module := model.get("module"), str) and ":" in module:
            file, _, class_name = module.rpartition(":")
            model["module"] = f"{(base_folder / file).resolve()}:{class_name}"
        if isinstance(weights := model.get("pretrained"), str):
            # Try paths relative to the file, then to the current folder. Any other value names a package or hub model.
            candidates = (base_folder / Path(weights).expanduser(), Path(weights).expanduser())
            model["pretrained"] = next(
                (str(candidate.resolve()) for candidate in candidates if candidate.is_dir()), weights
            )
        if isinstance(source := data.get("source"), str):
            data["source"] = resolve_source_path(source, base_folder)
        elif isinstance(source, list):
            data["source"] = [
                resolve_source_path(path, base_folder) if isinstance(path, str) else path for path in source
            ]
        if sweep.get("corpora") is not None:
            sweep["corpora"] = _resolve_sweep_corpora(sweep["corpora"], base_folder)
        if isinstance(teacher_model := teacher.get("model"), str) and (base_folder / teacher_model).exists():
            teacher["model"] = str((base_folder / teacher_model).resolve())
        tokenizer = _get_table(data, "tokenizer")
        if isinstance(tokenizer.get("path"), str):
            tokenizer["path"] = str((base_folder / tokenizer["path"]).resolve())


def _resolve_sweep_corpora(corpora: Any, base_folder: Path) -> Any:
    """Return the setting `sweep.corpora` with absolute paths: a list or table of sources or of [data] settings."""
    if isinstance(corpora, list):
        return [_resolve_sweep_corpora(corpus, base_folder) for corpus in corpora]
    if isinstance(corpora, dict) and "source" in corpora:
        return {**corpora, "source": _resolve_sweep_corpora(corpora["source"], base_folder)}
    if isinstance(corpora, dict):
        return {name: _resolve_sweep_corpora(corpus, base_folder) for name, corpus in corpora.items()}
    return resolve_source_path(corpora, base_folder) if isinstance(corpora, str) else corpora


def _get_table(raw: RawConfig, name: str) -> RawConfig:
    """Return a table of unvalidated settings; an empty dict if it is missing or of a different type."""
    table = raw.get(name)
    return table if isinstance(table, dict) else {}
