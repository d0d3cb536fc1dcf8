"""`h2h export --to FORMAT`: the formats, and the export of a run in one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headtohead.errors import RequestError, format_suggestion
from headtohead.exchange.export.gguf_file import export_to_gguf
from headtohead.exchange.export.onnx_folder import export_to_onnx
from headtohead.exchange.export.transformer_lens_folder import export_to_transformer_lens
from headtohead.exchange.export.transformers_folder import (
    ExportedModel,
    check_folder_is_empty,
    export_to_transformers,
)


@dataclass(frozen=True)
class ExportFormat:
    """A format of `h2h export --to`.

    Args:
        write_folder: Writes the model of a run folder into an output folder, which is new or empty. Takes the keyword
            argument `model_type` if the format has architectures.
        has_architectures: Whether the option `--architecture` applies.
    """

    write_folder: Callable[..., ExportedModel]
    has_architectures: bool = False


EXPORT_FORMATS = {
    "transformers": ExportFormat(export_to_transformers, has_architectures=True),
    "onnx": ExportFormat(export_to_onnx),
    "gguf": ExportFormat(export_to_gguf, has_architectures=True),
    "transformer-lens": ExportFormat(export_to_transformer_lens, has_architectures=True),
}


def export_run(
    source: Path, format_name: str, folder: Path | None = None, *, model_type: str | None = None
) -> ExportedModel:
    """Export a run folder in a format of `h2h export --to`, by default into exported/VARIANT-SEED."""
    if format_name not in EXPORT_FORMATS:
        raise RequestError(
            f"--to {format_name}: unknown format{format_suggestion(format_name, EXPORT_FORMATS)} "
            f"(formats: {', '.join(EXPORT_FORMATS)})"
        )
    export_format = EXPORT_FORMATS[format_name]
    if model_type is not None and not export_format.has_architectures:
        raise RequestError(f"--architecture does not apply to --to {format_name}")
    folder = folder or Path("exported") / _get_default_folder_name(source)
    check_folder_is_empty(folder)
    return export_format.write_folder(source, folder, **({} if model_type is None else {"model_type": model_type}))


def _get_default_folder_name(source: Path) -> str:
    """Return the name of the default output folder for a run: its variant and seed."""
    folder = source.resolve()
    return f"{folder.parent.name}-{folder.name}" if folder.name.startswith("seed-") else folder.name
