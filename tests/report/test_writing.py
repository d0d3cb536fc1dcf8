import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headtohead import report
from headtohead.attention_analysis.thumbnails import TrainingMaps
from headtohead.errors import RequestError, RunFolderError
from headtohead.experiment.recorded_code import read_recorded_code_files
from headtohead.json_files import write_json
from headtohead.presentation.chart import AltairChart, Chart, ChartDatasets
from headtohead.presentation.command_line import format_command
from headtohead.presentation.renderers.typst import TypstDocument, render_pdf
from headtohead.presentation.section import Figure, HtmlBlock, Paragraph, Section, TableBlock
from headtohead.presentation.table import make_numeric_columns, make_table, make_text_columns
from headtohead.report import documents
from headtohead.report.context import ReportContext
from headtohead.report.sections import attention

from .make_findings import make_findings

RawFindings = dict[str, Any]


def test_every_format_is_written_and_named(
    raw_findings_without_curves: Callable[..., RawFindings], write_folder: Callable[[RawFindings], Path], tmp_path: Path
) -> None:
    result = raw_findings_without_curves({"v": -0.08})
    out = tmp_path / "elsewhere"
    paths = report.write(write_folder(result), ["md", "pdf", "tex", "csv", "chart-svg", "chart-pdf", "chart-png"], out)
    assert all(path.is_file() and path.stat().st_size > 10 for path in paths)
    names = {str(path.relative_to(out)) for path in paths}
    assert {"report.md", "report.pdf", "report-tables/verdicts.csv", "report-tables/verdicts.tex"} <= names
    assert {f"report-charts/forest.{item}" for item in ("svg", "pdf", "png")} <= names


def test_the_page_is_written_to_the_experiment_s_folder_or_the_requested_file(
    raw_findings: Callable[..., RawFindings], write_folder: Callable[[RawFindings], Path], tmp_path: Path
) -> None:
    result = {"schema_version": 2, "verdicts": raw_findings({"v": -0.08})["verdicts"], "audits": {}}
    experiment_folder = write_folder(result)
    assert report.write(experiment_folder) == [experiment_folder / "report.html"]
    own_path = tmp_path / "new" / "mine.html"
    assert report.write(experiment_folder, ["html"], own_path) == [own_path]
    assert own_path.read_text() == (experiment_folder / "report.html").read_text()


def test_a_confusion_table_s_file_name_is_safe(write_folder: Callable[[RawFindings], Path], tmp_path: Path) -> None:
    matrices = {"../../up": [[1]], "v": [[1]]}
    result = {"schema_version": 2, "audits": {}, "confusion": {"labels": ["a"], "matrices": matrices}}
    paths = report.write(write_folder(result), ["csv"], tmp_path / "out")
    assert {path.parent for path in paths} == {tmp_path / "out" / "report-tables"}
    assert len(paths) == 2


def test_an_unknown_format_is_rejected_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(
        RequestError, match=r"'htm' given; did you mean 'html'\?; allowed: html, md, pdf, tex, csv, chart-svg"
    ):
        report.write(tmp_path, ["md", "htm"])
    with pytest.raises(RequestError, match="none given"):
        report.write(tmp_path, [])
    with pytest.raises(RunFolderError, match=r"has no findings\.json"):
        report.write(tmp_path, ["html"])
    assert list(tmp_path.iterdir()) == []


def test_a_report_is_written_without_torch_and_terminal_output_without_altair(
    raw_findings: Callable[..., RawFindings], write_folder: Callable[[RawFindings], Path]
) -> None:
    experiment_folder = write_folder(
        {"schema_version": 2, "verdicts": raw_findings({"v": -0.08})["verdicts"], "audits": {}}
    )
    script = (
        "import sys, json; from pathlib import Path; from headtohead import report;"
        "from headtohead.report import terminal; assert 'altair' not in sys.modules;"
        f"report.write(Path({str(experiment_folder)!r}), ['html', 'md', 'pdf', 'tex', 'csv', 'chart-svg']);"
        "import headtohead.report.notebook;"
        "print(json.dumps([name for name in ('torch', 'altair') if name in sys.modules]))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=100)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == ["altair"]


def test_the_pdf_is_one_document_with_captions_and_escaped_text(
    raw_findings: Callable[..., RawFindings], write_folder: Callable[[RawFindings], Path], tmp_path: Path
) -> None:
    hostile = '#panic("run")[*bold*] \\ "quoted" $x$ @ref <tag>'
    content = raw_findings({"v": -0.08}) | {"schema_version": 2}
    content["samples"] = {"v": [{"prompt": hostile, "text": hostile, "seed": 0}]}
    short, full = tmp_path / "short.pdf", tmp_path / "full.pdf"
    experiment_folder = write_folder(content)
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
def test_wide_tables_are_split_in_the_pdf_and_empty_optional_columns_omitted(
    tmp_path: Path, second_variant: str, num_steps_columns: int
) -> None:
    columns = [*make_text_columns("variant", "step"), *make_numeric_columns(*(f"column {i}" for i in range(12)))]
    columns += make_numeric_columns("unused", is_optional=True)
    rows = [[name, step, *range(12), None] for step, name in enumerate(["alibi", second_variant])]
    table = make_table("wide", "Wide", "", columns, rows)
    source = TypstDocument(tmp_path).render("Title", [], [Section("wide", "Wide", [TableBlock(table)])])
    assert source.count("figure(kind: table") == 1
    assert source.count("table.header(") == source.count('strong("variant")') == 2
    assert source.count('strong("step")') == num_steps_columns  # repeated if the variant does not identify the row
    assert all(source.count(f'strong("column {i}")') == 1 for i in range(12))
    assert "unused" not in source


def test_tables_of_the_pdf_use_the_largest_type_in_which_only_titles_wrap(tmp_path: Path) -> None:
    def render(num_columns: int, cell: str) -> str:
        columns = [*make_text_columns("variant"), *make_numeric_columns(*["validation accuracy"] * num_columns)]
        rows = [[name, *[cell] * num_columns] for name in ("alibi", "alibi", "rope")]
        table = make_table("t", "T", "", columns, rows)
        return TypstDocument(tmp_path).render("Title", [], [Section("t", "T", [TableBlock(table)])])

    assert "set text(size: 8.5pt)" in render(7, "44.4 %")
    assert "set text(size: 7.6pt)" in render(9, "12,345.6 %")
    assert "set text(size: 6.8pt)" in render(10, "12,345.6 %")
    assert render(1, "1").count("table.hline(stroke: 0.5pt + luma(180))") == 1  # between alibi and rope


@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="pdftotext is not installed")
def test_attention_maps_of_the_pdf_have_a_label_for_every_token(tmp_path: Path) -> None:
    maps = np.full((2, 3, 3), 1 / 3)
    tokens = ("union", "by", "states")
    training_maps = TrainingMaps("text", tokens, before={0: maps}, after={0: maps})
    variables = attention._make_map_template_variables("baseline", training_maps)
    grid = attention._build_map_image_grid(variables)
    pdf = tmp_path / "report.pdf"
    pdf.write_bytes(render_pdf("Title", [], [Section("maps", "Maps", [HtmlBlock("maps", image_grids=[grid])])]))
    tops = {word: box[1] for _, box, word in read_word_boxes(pdf) if word in tokens}
    assert tops["union"] < tops["by"] < tops["states"]


@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="pdftotext is not installed")
def test_no_chart_of_the_pdf_follows_the_last_section(tmp_path: Path) -> None:
    rows = [{"x": index, "y": index} for index in range(2)]

    def build(layout: str, datasets: ChartDatasets) -> AltairChart:
        data = datasets.chart(rows)
        return data.mark_point().encode(x="x:Q", y="y:Q").properties(width=600, height=1000)

    figure = Figure(Chart("high", "High", "a high chart", build), "floating chart")
    sections = [
        Section("a", "First", [*[Paragraph("line")] * 20, figure]),
        Section("b", "Last", [Paragraph("end of the document")]),
    ]
    pdf = tmp_path / "report.pdf"
    pdf.write_bytes(render_pdf("Title", [], sections))
    words = [word for _, _, word in sorted(read_word_boxes(pdf), key=lambda box: (box[0], box[1][1]))]
    assert words.index("floating") < words.index("Last")


LONG_NAME = "rotary-position-embedding"


@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="pdftotext is not installed")
@pytest.mark.parametrize("is_full", [False, True])
def test_words_of_the_pdf_do_not_overlap(
    raw_findings_without_curves: Callable[..., RawFindings],
    write_folder: Callable[[RawFindings], Path],
    tmp_path: Path,
    is_full: bool,
) -> None:
    content = raw_findings_without_curves({LONG_NAME: 0.0005, "open": -0.012})
    assert content["verdicts"][0]["outcome"] == "no practical difference"
    content["verdicts"][1] |= {"additional_seeds": 999, "additional_documents": 99_999, "outcome": "cannot tell"}
    (path,) = report.write(write_folder(content), ["pdf"], tmp_path / "report.pdf", is_full=is_full)
    boxes = read_word_boxes(path)
    assert ("settle" in {word for _, _, word in boxes}) == is_full, "the short form omits the table of precision"
    overlaps = [
        (word, other)
        for index, (page, box, word) in enumerate(boxes)
        for other_page, other_box, other in boxes[index + 1 :]
        if page == other_page and boxes_overlap(box, other_box)
    ]
    assert overlaps == []


Box = tuple[float, float, float, float]


def read_word_boxes(path: Path) -> list[tuple[int, Box, str]]:
    """Return page, bounding box (left, top, right, bottom, in points) and text of every word."""
    command = ["pdftotext", "-bbox", str(path), "-"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    pattern = re.compile(r'<word xMin="(.*?)" yMin="(.*?)" xMax="(.*?)" yMax="(.*?)">(.*?)</word>')
    return [
        (page, (float(left), float(top), float(right), float(bottom)), word)
        for page, page_text in enumerate(text.split("<page "))
        for left, top, right, bottom, word in pattern.findall(page_text)
    ]


def boxes_overlap(first: Box, second: Box) -> bool:
    """Return whether two words overlap by more than rounding and half of the line height."""
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    return width > 0.5 and height > 0.5 * min(first[3] - first[1], second[3] - second[1])


@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="pdftotext is not installed")
def test_headings_and_captions_are_on_the_page_of_their_table(tmp_path: Path) -> None:
    pdf = tmp_path / "report.pdf"
    for num_lines in range(40, 52):
        lines = [Paragraph("line") for _ in range(num_lines)]
        table = make_table("t", "Caption", "", make_text_columns("column"), [["cell " * 100]])
        pdf.write_bytes(
            render_pdf("Title", [], [Section("a", "A", lines), Section("b", "Heading", [TableBlock(table)])])
        )
        boxes = read_word_boxes(pdf)
        pages = {page for page, _, word in boxes if word in ("Heading", "Caption.", "cell")}
        assert len(pages) == 1, num_lines


def test_code_files_are_listed_with_their_digest_and_text(
    raw_findings_without_curves: Callable[..., RawFindings], write_folder: Callable[[RawFindings], Path]
) -> None:
    content = raw_findings_without_curves({"v": -0.08})
    experiment_folder = write_folder(content)
    code = "WIDTH = 64\n"
    digest = hashlib.sha256(code.encode()).hexdigest()
    dependencies = {"headtohead": "0.2.0", "my_parts.py": digest, "layers/norm.py": "0" * 64, "../up.py": "1" * 64}
    metadata = {
        "schema_version": 2,
        "identity": "x",
        "experiment": make_findings(content).to_json()["experiment"],
        "dependencies": {"baseline": dependencies, "v": dependencies},
    }
    write_json(experiment_folder / "experiment.json", metadata)
    for name, text in (("my_parts.py", code), ("layers/norm.py", "changed")):
        copy = experiment_folder / "v" / "seed-0" / "own" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text)
    files = read_recorded_code_files(experiment_folder)
    assert [(file.name, file.text) for file in files] == [("my_parts.py", code), ("layers/norm.py", "")]
    context = ReportContext(make_findings(content), experiment_folder)
    short = documents.render_markdown_document(context)
    full = documents.render_markdown_document(replace(context, is_full=True))
    assert digest in short and "WIDTH = 64" not in short
    assert "WIDTH = 64" in full and "changed" not in full


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["/x/headtohead/__main__.py", "run", "a b.toml"], "h2h run 'a b.toml'"),
        (["/usr/bin/h2h", "run", "x"], "h2h run x"),
        (["/home/me/train.py"], "train.py"),
    ],
)
def test_commands_are_shown_as_users_type_them(command: list[str], shown: str) -> None:
    assert format_command(command) == shown
