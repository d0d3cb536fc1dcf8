"""End-to-end tests of `h2h attention`."""

import json
import re
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import headtohead as h2h
from headtohead.cli.app import app
from headtohead.errors import HeadToHeadError

from .conftest import TEXT

RunFolders = dict[str, Path]


@pytest.fixture(autouse=True)
def _change_to_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run_attention_command(*arguments: str | Path) -> str:
    """Run `h2h attention` and return what it prints."""
    result = CliRunner().invoke(app, ["attention", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_page_is_written_and_metrics_are_printed(decoders: RunFolders) -> None:
    output = run_attention_command(decoders["baseline"], TEXT)
    assert Path("attention.html").read_text().startswith("<!doctype html>")
    assert "picture: attention.html" in output
    assert "baseline, seed 0" in output
    assert "✓ triangle: No token attends to later ones" in output
    assert max(map(len, output.splitlines())) <= 80


def test_json_has_metrics_and_checks_and_no_page_is_written(decoders: RunFolders) -> None:
    document = json.loads(run_attention_command(decoders["baseline"], TEXT, "--json", "--ablate-heads"))
    assert document["tokens"] == TEXT.split()
    assert document["file"] is None
    assert not Path("attention.html").exists()
    (panel,) = document["panels"]
    assert len(panel["measures"]) == 4
    assert {"entropy", "induction", "copies", "rise"} <= set(panel["measures"][0])
    assert [check["passed"] for check in panel["checks"]] == [True, None, True, None]


@pytest.mark.parametrize("extension", ["svg", "pdf", "png", "html"])
def test_one_head_of_two_models_is_saved_in_every_format(decoders: RunFolders, extension: str) -> None:
    run_attention_command(
        decoders["baseline"],
        TEXT,
        "--compare-to",
        decoders["alibi"],
        "--layer",
        "1",
        "--head",
        "2",
        "--out",
        f"x.{extension}",
    )
    assert Path(f"x.{extension}").stat().st_size > 2_000


def test_before_and_after_training_are_two_tables(decoders: RunFolders) -> None:
    output = run_attention_command(decoders["baseline"], TEXT, "--before-training", "--out", "x.svg")
    assert output.index("before training") < output.index("after training")
    assert "before training</text>" in Path("x.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((TEXT, "--layer", "7"), "no layer 7; allowed: 1 to 2"),
        (("",), "the text is empty"),
        (("qqq zzz",), "every word of this text is unknown"),
        ((TEXT, "--out", "x.jpg"), "unsupported file extension"),
        ((TEXT, "--compare-to", "nowhere"), "nowhere"),
    ],
)
def test_invalid_requests_are_reported_with_exit_code_2(
    decoders: RunFolders, arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(HeadToHeadError, match=message) as raised:
        run_attention_command(decoders["baseline"], *arguments)
    assert raised.value.exit_code == 2
    assert not list(Path().iterdir())


def test_python_interface_displays_and_saves_the_analysis(decoders: RunFolders, tmp_path: Path) -> None:
    attention = h2h.analyze_attention(decoders["alibi"], TEXT)
    assert repr(attention) == "<attention of alibi, seed 0: 7 tokens, 2 layers x 2 heads>"
    assert attention._repr_html_().count("data:image/png") == 4
    assert "<html" not in attention._repr_html_()
    assert attention.save(tmp_path / "x.svg") == tmp_path / "x.svg"
    assert len(attention.measures) == 4
    assert len(attention.checks) == 4


def test_code_and_options_of_the_guide_are_valid(decoders: RunFolders) -> None:
    """The Python code of docs/how-to/attention.md runs on an existing run."""
    guide = (Path(__file__).parents[2] / "docs" / "how-to" / "attention.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", guide, flags=re.DOTALL)
    namespace: dict[str, object] = {}
    exec(
        code.replace("runs/mine/baseline/seed-0", str(decoders["baseline"])).replace("We will not rest", TEXT),
        namespace,
    )
    assert Path("attention.pdf").read_bytes().startswith(b"%PDF")
    command = get_command(app).commands["attention"]
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert set(re.findall(r"`(--[a-z-]+)", guide)) <= options
