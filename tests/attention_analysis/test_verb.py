"""`h2h attention`, as a person calls it."""

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

Runs = dict[str, Path]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def said(*words: str | Path) -> str:
    answer = CliRunner().invoke(app, ["attention", *map(str, words)], catch_exceptions=False)
    assert answer.exit_code == 0
    return answer.stdout


def test_a_page_is_written_and_the_terminal_tells_what_each_head_does(decoders: Runs) -> None:
    out = said(decoders["baseline"], TEXT)
    assert Path("attention.html").read_text().startswith("<!doctype html>")
    assert "picture: attention.html" in out
    assert "baseline, seed 0" in out
    assert "✓ triangle: No token attends to later ones" in out
    assert max(map(len, out.splitlines())) <= 80


def test_json_gives_measures_and_checks_and_writes_nothing(decoders: Runs) -> None:
    found = json.loads(said(decoders["baseline"], TEXT, "--json", "--ablate-heads"))
    assert found["tokens"] == TEXT.split()
    assert found["file"] is None
    assert not Path("attention.html").exists()
    (panel,) = found["panels"]
    assert len(panel["measures"]) == 4
    assert {"entropy", "induction", "copies", "rise"} <= set(panel["measures"][0])
    assert [check["passed"] for check in panel["checks"]] == [True, None, True, None]


@pytest.mark.parametrize("ending", ["svg", "pdf", "png", "html"])
def test_one_head_of_two_models_in_every_format(decoders: Runs, ending: str) -> None:
    said(
        decoders["baseline"],
        TEXT,
        "--compare-to",
        decoders["alibi"],
        "--layer",
        "1",
        "--head",
        "2",
        "--out",
        f"x.{ending}",
    )
    assert Path(f"x.{ending}").stat().st_size > 2_000


def test_before_and_after_are_two_tables(decoders: Runs) -> None:
    out = said(decoders["baseline"], TEXT, "--before-training", "--out", "x.svg")
    assert out.index("before training") < out.index("after training")
    assert "before training</text>" in Path("x.svg").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((TEXT, "--layer", "7"), "no layer 7; allowed: 1 to 2"),
        (("",), "the text is empty"),
        (("qqq zzz",), "every word of this text is unknown"),
        ((TEXT, "--out", "x.jpg"), "unsupported file extension"),
        ((TEXT, "--compare-to", "nowhere"), "nowhere"),
    ],
)
def test_a_wrong_request_is_told_in_words_with_exit_code_2(
    decoders: Runs, words: tuple[str, ...], message: str
) -> None:
    with pytest.raises(HeadToHeadError, match=message) as raised:
        said(decoders["baseline"], *words)
    assert raised.value.exit_code == 2
    assert not list(Path().iterdir())


def test_the_same_from_python_displays_itself(decoders: Runs, tmp_path: Path) -> None:
    seen = h2h.analyze_attention(decoders["alibi"], TEXT)
    assert repr(seen) == "<attention of alibi, seed 0: 7 tokens, 2 layers x 2 heads>"
    assert seen._repr_html_().count("data:image/png") == 4
    assert "<html" not in seen._repr_html_()
    assert seen.save(tmp_path / "x.svg") == tmp_path / "x.svg"
    assert len(seen.measures) == 4
    assert len(seen.checks) == 4


def test_the_guide_shows_what_works(decoders: Runs) -> None:
    """The Python of docs/how-to/attention.md, on a run that is there."""
    guide = (Path(__file__).parents[2] / "docs" / "how-to" / "attention.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", guide, flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(code.replace("runs/mine/baseline/seed-0", str(decoders["baseline"])).replace("We will not rest", TEXT), names)
    assert Path("attention.pdf").read_bytes().startswith(b"%PDF")
    verb = get_command(app).commands["attention"]
    options = {option for parameter in verb.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert set(re.findall(r"`(--[a-z-]+)", guide)) <= options
