import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headtohead import report
from headtohead.errors import RequestError, RunFolderError
from headtohead.presentation.renderers.typst import TypstDocument
from headtohead.presentation.section import Section, TableBlock
from headtohead.presentation.table import make_numeric_columns, make_table, make_text_columns

Findings = dict[str, Any]


def test_every_format_is_written_and_named(
    plain: Callable[..., Findings], folder: Callable[[Findings], Path], tmp_path: Path
) -> None:
    found = plain({"v": -0.08})
    out = tmp_path / "elsewhere"
    written = report.write(folder(found), ["md", "pdf", "csv", "latex", "chart-svg", "chart-pdf", "chart-png"], out)
    assert all(path.is_file() and path.stat().st_size > 10 for path in written)
    names = {str(path.relative_to(out)) for path in written}
    assert {"report.md", "report.pdf", "report-tables/verdicts.csv", "report-tables/verdicts.tex"} <= names
    assert {f"report-charts/forest.{one}" for one in ("svg", "pdf", "png")} <= names


def test_the_page_lies_in_the_experiment_s_folder_or_where_it_was_asked_for(
    findings: Callable[..., Findings], folder: Callable[[Findings], Path], tmp_path: Path
) -> None:
    found = {"schema_version": 2, "verdicts": findings({"v": -0.08})["verdicts"], "audits": {}}
    place = folder(found)
    assert report.write(place) == [place / "report.html"]
    mine = tmp_path / "new" / "mine.html"
    assert report.write(place, ["html"], mine) == [mine]
    assert mine.read_text() == (place / "report.html").read_text()


def test_a_confusion_table_s_file_name_is_safe(folder: Callable[[Findings], Path], tmp_path: Path) -> None:
    matrices = {"../../up": [[1]], "v": [[1]]}
    found = {"schema_version": 2, "audits": {}, "confusion": {"labels": ["a"], "matrices": matrices}}
    written = report.write(folder(found), ["csv"], tmp_path / "out")
    assert {path.parent for path in written} == {tmp_path / "out" / "report-tables"}
    assert len(written) == 2


def test_an_unknown_format_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(
        RequestError, match=r"'htm' given; did you mean 'html'\?; allowed: html, md, pdf, tex, csv, latex, chart-svg"
    ):
        report.write(tmp_path, ["md", "htm"])
    with pytest.raises(RequestError, match="none given"):
        report.write(tmp_path, [])
    with pytest.raises(RunFolderError, match=r"has no findings\.json"):
        report.write(tmp_path, ["html"])
    assert list(tmp_path.iterdir()) == []


def test_a_report_is_made_without_torch_and_the_room_opens_without_altair(
    findings: Callable[..., Findings], folder: Callable[[Findings], Path]
) -> None:
    place = folder({"schema_version": 2, "verdicts": findings({"v": -0.08})["verdicts"], "audits": {}})
    script = (
        "import sys, json; from pathlib import Path; from headtohead import report;"
        "from headtohead.report import terminal; assert 'altair' not in sys.modules;"
        f"report.write(Path({str(place)!r}), ['html', 'md', 'pdf', 'csv', 'latex', 'chart-svg']);"
        "import headtohead.report.notebook;"
        "print(json.dumps([name for name in ('torch', 'altair') if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["altair"]


def test_the_pdf_is_one_document_with_captions_and_escaped_text(
    findings: Callable[..., Findings], folder: Callable[[Findings], Path], tmp_path: Path
) -> None:
    hostile = '#panic("run")[*bold*] \\ "quoted" $x$ @ref <tag>'
    content = findings({"v": -0.08}) | {"schema_version": 2}
    content["samples"] = {"v": [{"prompt": hostile, "text": hostile, "seed": 0}]}
    short, full = tmp_path / "short.pdf", tmp_path / "full.pdf"
    experiment_folder = folder(content)
    report.write(experiment_folder, ["pdf"], short)
    report.write(experiment_folder, ["pdf"], full, is_full=True)
    assert short.read_bytes().startswith(b"%PDF")
    assert len(full.read_bytes()) > len(short.read_bytes())
    pdftotext = shutil.which("pdftotext")
    if pdftotext is None:
        pytest.skip("pdftotext is not installed")
    text = subprocess.run([pdftotext, "-layout", str(short), "-"], capture_output=True, text=True, check=True).stdout
    words = " ".join(text.split())
    assert "Figure 1:" in words
    assert "Table 1:" in words
    assert '#panic("run")[*bold*]' in words
    assert words.index("Verdict") < words.index("Changed settings") < words.index("Training") < words.index("Checks")


@pytest.mark.parametrize(("second_variant", "num_steps_columns"), [("rope", 1), ("alibi", 2)])
def test_wide_tables_are_split_in_the_pdf_and_empty_optional_columns_left_out(
    tmp_path: Path, second_variant: str, num_steps_columns: int
) -> None:
    columns = [*make_text_columns("variant", "step"), *make_numeric_columns(*(f"column {i}" for i in range(12)))]
    columns += make_numeric_columns("unused", is_optional=True)
    rows = [[name, step, *range(12), None] for step, name in enumerate(["alibi", second_variant])]
    table = make_table("wide", "Wide", "", columns, rows)
    source = TypstDocument(tmp_path).render("Title", [], [Section("wide", "Wide", [TableBlock(table)])])
    assert source.count("#figure(kind: table") == 1
    assert source.count("table.header(") == source.count('strong("variant")') == 2
    assert source.count('strong("step")') == num_steps_columns  # repeated if the variant does not identify the row
    assert all(source.count(f'strong("column {i}")') == 1 for i in range(12))
    assert "unused" not in source
