"""The option `--to` of `h2h export`."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from headtohead.cli import app
from headtohead.errors import RequestError
from headtohead.exchange.export.run_export import EXPORT_FORMATS, export_run


def test_help_lists_the_formats() -> None:
    text = " ".join(CliRunner().invoke(app, ["export", "--help"], env={"COLUMNS": "80"}).output.split())
    assert f"{', '.join(EXPORT_FORMATS)}." in text


def test_unknown_formats_get_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="--to transformer: unknown format; did you mean 'transformers'"):
        export_run(tmp_path, "transformer")
