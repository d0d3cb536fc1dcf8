import csv
import io
import re
from collections.abc import Callable
from typing import Any

import pytest

from headtohead.presentation.renderers import csv_tables, latex, markdown
from headtohead.presentation.table import Cell, Column, Table
from headtohead.replication.tables import build_published_table
from headtohead.report import documents
from headtohead.report.context import ReportContext
from headtohead.report.sections import audits, build_tables, changed_settings, corpus, curves, pairing, probes, scores
from headtohead.report.terminal import print_audit_summary

from .conftest import make_audit
from .make_findings import make_findings

RawFindings = dict[str, Any]
SPECIAL_CHARACTERS = "a|b_c\n`d` <b> & 50 % \\x {y} ~ ^ # $"


def list_cell_texts(table: Table) -> list[list[str]]:
    return [[cell.text for cell in row] for row in table.rows]


def test_tables_come_in_the_report_s_order_and_only_with_rows(raw_findings: Callable[..., RawFindings]) -> None:
    names = [table.name for table in build_tables(make_findings(raw_findings({"v": 0.1})))]
    assert names == [
        "verdicts",
        "precision",
        "others",
        "settings",
        "scores",
        "curves",
        "results",
        "samples",
        "sentences",
        "cost",
        "pairing",
        "audits",
        "data_audits",
        "corpus",
        "published",
    ]
    assert build_tables(make_findings({})) == []


def test_the_share_of_unknown_words_is_shown_next_to_every_perplexity(raw_findings: Callable[..., RawFindings]) -> None:
    result = raw_findings({"v": 0.1})
    assert [row[-1] for row in list_cell_texts(scores.build_scores_by_seed_table(make_findings(result)))] == [
        "2.1\N{NO-BREAK SPACE}%"
    ] * 2
    assert list_cell_texts(scores.build_scores_table(make_findings(result)))[-1] == [
        "unknown words",
        "2.1\N{NO-BREAK SPACE}%",
    ]
    result["corpus"]["splits"]["test"]["unknown"] = 0.0
    assert scores.build_scores_by_seed_table(make_findings(result)).columns[-1].name == "seed 2"
    by_rows = raw_findings({"v": 0.1}, metric="accuracy")
    assert scores.build_scores_by_seed_table(make_findings(by_rows)).columns[-1].name == "seed 2"


def test_every_table_shows_the_same_mean(raw_findings: Callable[..., RawFindings]) -> None:
    result = raw_findings({"v": 0.1})
    result["scores"] = {"baseline": {"test": [[0, 100.0], [1, 400.0]]}}
    result["curves"] = {"baseline": {"test": {"0": [[0, 900.0], [9, 100.0]], "1": [[0, 900.0], [9, 400.0]]}}}
    content = make_findings(result)
    assert scores.build_scores_table(content).rows[0][1].value == pytest.approx(200)
    assert scores.build_scores_by_seed_table(content).rows[0][2].value == pytest.approx(200)
    assert "200.0" in list_cell_texts(curves.build_curves_table(content))[-1]


def test_scores_name_the_weights_that_were_scored(raw_findings: Callable[..., RawFindings]) -> None:
    result = raw_findings({"v": 0.1})
    assert scores.build_scores_table(make_findings(result)).caption.startswith("Perplexity with the final weights: ")
    result["experiment"]["training"] = {"load_best_model_at_end": True}
    assert scores.build_scores_table(make_findings(result)).caption.startswith("Perplexity with the selected weights: ")
    result["experiment"]["training"] = {}
    result["experiment"]["variants"] = {"v": {"training": {"load_best_model_at_end": True}}}
    assert scores.build_scores_table(make_findings(result)).caption.startswith("Perplexity with the selected weights: ")


def test_changed_settings_are_shown_next_to_the_baseline_s_value(raw_findings: Callable[..., RawFindings]) -> None:
    result = raw_findings({"v": 0.1})
    assert list_cell_texts(changed_settings.build_changed_settings_table(make_findings(result))) == [
        ["v", "model.position", "learned", "alibi"]
    ]
    result["pairing"]["v"] |= {"changes_multiple_settings": True}
    assert (
        list_cell_texts(changed_settings.build_changed_settings_table(make_findings(result)))[0][-1]
        == "changes several settings"
    )


def test_a_single_unequal_tensor_or_different_batches_break_the_pairing(
    raw_findings: Callable[..., RawFindings],
) -> None:
    result = raw_findings({"v": 0.1})
    assert "paired: " in list_cell_texts(pairing.build_pairing_table(make_findings(result)))[0][-1]
    for broken in ({"equal_tensors": 56}, {"same_batches": False}, {"shared_tensors": None, "equal_tensors": None}):
        unpaired = {"pairing": {"v": result["pairing"]["v"] | broken}}
        assert list_cell_texts(pairing.build_pairing_table(make_findings(unpaired)))[0][-1].startswith("not paired: ")


def test_failed_audits_come_first_and_mild_ones_are_notes(raw_findings: Callable[..., RawFindings]) -> None:
    result = raw_findings({"v": 0.1})
    assert [row[1] for row in list_cell_texts(audits.build_data_audits_table(make_findings(result)))] == [
        "failed",
        "note",
    ]
    result["audits"]["v"][0]["passed"] = False
    assert list_cell_texts(audits.build_audits_table(make_findings(result)))[0][:3] == ["v", "cache", "failed"]


def test_terminal_and_report_count_audits_alike(
    raw_findings: Callable[..., RawFindings], capsys: pytest.CaptureFixture[str]
) -> None:
    result = raw_findings({"v": 0.1})
    result["data_audits"] = [make_audit("vocabulary", False, is_blocking=False), make_audit("rows", True)]
    result["variant_data_audits"] = {"v": [make_audit("rows", True)]}
    context = ReportContext(make_findings(result))
    sections = corpus.build_data_section(context), audits.build_audits_section(context)
    assert [section.summary for section in sections if section] == [
        "1 note, 2 passed.",
        "2 passed, 2 do not apply.",
    ]
    print_audit_summary(make_findings(result))
    printed = capsys.readouterr().out.splitlines()
    assert printed[:2] == ["audits of the data: 1 note, 2 passed", "audits of the models: 2 passed, 2 do not apply"]
    rows = list_cell_texts(audits.build_data_audits_table(make_findings(result)))
    assert [row[0] for row in rows] == ["vocabulary", "rows", "rows (data of v)"]


def test_only_blocking_failures_are_shown_as_cards(raw_findings: Callable[..., RawFindings]) -> None:
    section = corpus.build_data_section(ReportContext(make_findings(raw_findings({"v": 0.1}))))
    (block, *_) = section.blocks
    assert [audit["is_blocking"] for audit in block.variables["failed"]] == [True]
    assert len(block.variables["notes"]) == 1


def test_costs_are_given_as_ratio_to_the_baseline(raw_findings: Callable[..., RawFindings]) -> None:
    baseline, variant = pairing.build_cost_table(make_findings(raw_findings({"v": 0.1}))).rows
    assert [cell.value for cell in variant[5:7]] == [0.06, pytest.approx(1.2)]
    assert baseline[5].value == 0.05


def test_a_published_score_on_different_data_is_shown_but_not_compared(
    raw_findings: Callable[..., RawFindings],
) -> None:
    result = raw_findings({"v": 0.1})
    ours, theirs = list_cell_texts(build_published_table(make_findings(result)))
    assert ours[0] == "ours, baseline"
    assert ours[1].replace("\u00a0", " ") == "400.0 (390.0 to 410.0)"
    assert theirs[1].replace("\u00a0", " ") == "375.0 (−6.2 %)"
    result["published"][0]["other_data"] = True
    other = list_cell_texts(build_published_table(make_findings(result)))[1]
    assert (other[1], other[2]) == ("375.0", "different data: not compared; one seed")
    assert build_published_table(make_findings(result)).long_form.rows[0][8].value is None


def test_published_scores_have_one_row_per_source_and_one_column_per_split(
    raw_findings: Callable[..., RawFindings],
) -> None:
    result = raw_findings({"v": 0.1})
    (item,) = result["published"]
    result["published"] = [
        item,
        item | {"split": "obama"},
        item | {"step": 100, "split": "obama"},
        item | {"source": "A"},
    ]
    table = build_published_table(make_findings(result))
    assert [column.title for column in table.columns] == ["source", "test", "obama", "note"]
    names = ["ours, baseline", "B, baseline", "A, baseline", "ours, baseline at step 100", "B, baseline at step 100"]
    assert [row[0] for row in list_cell_texts(table)] == names


def test_published_rows_are_sorted_by_variant_and_step(raw_findings: Callable[..., RawFindings]) -> None:
    result = raw_findings({"v": 0.1})
    (item,) = result["published"]
    steps = [{"variant": "v"}, {"step": "10 epochs"}, {"step": "2 epochs"}, {}]
    result["published"] = [item | changes for changes in steps]
    names = [
        row[0] for row in list_cell_texts(build_published_table(make_findings(result))) if row[0].startswith("ours")
    ]
    assert names == ["ours, baseline", "ours, baseline after 2 epochs", "ours, baseline after 10 epochs", "ours, v"]


def test_probe_sentences_show_perplexity_or_the_predicted_classes(raw_findings: Callable[..., RawFindings]) -> None:
    result = raw_findings({"v": 0.1})
    first, second = list_cell_texts(probes.build_probe_sentences_table(make_findings(result)))
    assert first == ["short", "We will meet.", "baseline", "200.0 (190.0 to 210.5)"]
    assert second == ["", "", "v", "200.0 (190.0 to 210.5)"]
    assert "short,We will meet.,v," in csv_tables.render_csv(
        probes.build_probe_sentences_table(make_findings(result))
    ), "a program gets every cell"
    result["sentences"] = {"v": {"short": {"0": ["Obama", 0.9], "1": ["Obama", 0.7], "2": ["Bush", 0.6]}}}
    output = list_cell_texts(probes.build_probe_sentences_table(make_findings(result)))[0][3].replace("\u00a0", " ")
    assert output == "Obama (2 of 3 seeds, confidence 80.0 %); Bush (1 of 3 seeds, confidence 60.0 %)"


def test_samples_of_all_variants_with_the_same_number_are_adjacent(raw_findings: Callable[..., RawFindings]) -> None:
    content = raw_findings({"v": 0.1})
    content["samples"] = {
        name: [
            {"prompt": prompt, "text": f"{number}", "seed": seed}
            for seed in (0, 1)
            for prompt in ("b", "a")
            for number in range(2)
        ]
        for name in ("baseline", "v")
    }
    rows = [[cell.text for cell in row] for row in probes.build_samples_table(make_findings(content)).rows]
    assert rows[:5] == [
        ["b", "baseline", "0", "0"],
        ["b", "v", "0", "0"],
        ["b", "baseline", "0", "1"],
        ["b", "v", "0", "1"],
        ["a", "baseline", "0", "0"],
    ]


def test_a_confusion_table_has_counts_and_shares_of_the_true_class() -> None:
    result = {"confusion": {"labels": ["a", "b"], "matrices": {"v": [[3, 1], [0, 0]]}}}
    (table,) = scores.build_confusion_tables(make_findings(result))
    output = [[text.replace("\u00a0", " ") for text in row] for row in list_cell_texts(table)]
    assert output == [["a", "3 (75.0 %)", "1 (25.0 %)"], ["b", "0 (0.0 %)", "0 (0.0 %)"]]


def make_table_of_special_characters() -> Table:
    columns = (Column("name", SPECIAL_CHARACTERS), Column("range", "range", True))
    rows = (
        (Cell(SPECIAL_CHARACTERS, SPECIAL_CHARACTERS), Cell("1 to 2", [1.5, 2.5])),
        (Cell("=1+1", "=1+1"), Cell("–")),
    )
    return Table("special", "Special", SPECIAL_CHARACTERS, columns, rows)


def test_a_markdown_cell_cannot_leave_its_cell() -> None:
    lines = markdown.render_markdown_table(make_table_of_special_characters()).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 4
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 3 for line in table)
    assert "<b>" not in markdown.render_markdown_table(make_table_of_special_characters()).replace("\\<b\\>", "")


def test_csv_reads_back_to_the_plain_values() -> None:
    head, first, second = csv.reader(io.StringIO(csv_tables.render_csv(make_table_of_special_characters())))
    assert head == ["name", "range_low", "range_high"]
    assert first == [SPECIAL_CHARACTERS, "1.5", "2.5"]
    assert second == ["'=1+1", "", ""], "a spreadsheet must not run it as a formula"


def test_latex_special_characters_are_escaped() -> None:
    text = latex.render_latex_table(make_table_of_special_characters())
    assert r"a\textbar{}b\_c `d` \textless{}b\textgreater{} \& 50 \% \textbackslash{}x \{y\}" in text
    assert r"\begin{tabular}{p{0.3\linewidth}r}" in text, "long words get a column that breaks lines"
    assert all(rule in text for rule in (r"\toprule", r"\midrule", r"\bottomrule"))
    rows = text.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
    assert all(len(re.findall(r"(?<!\\)&", row)) == 1 and row.endswith(r"\\") for row in rows)


def test_long_texts_share_the_width_of_a_latex_table(raw_findings: Callable[..., RawFindings]) -> None:
    result = raw_findings({"v": -0.1})
    for item in result["data_audits"]:
        item |= {"procedure": "many words " * 9, "observation": "many words " * 5, "interpretation": "few"}
    assert r"{llp{0.25\linewidth}p{0.25\linewidth}l}" in latex.render_latex_table(
        audits.build_data_audits_table(make_findings(result))
    )


def test_latex_tables_contain_ascii_only(raw_findings: Callable[..., RawFindings]) -> None:
    for table in build_tables(make_findings(raw_findings({"v": -0.1}))):
        assert latex.render_latex_table(table).isascii(), table.name


def test_the_markdown_report_opens_with_question_and_verdicts(raw_findings: Callable[..., RawFindings]) -> None:
    result = raw_findings({"v": -0.1})
    text = documents.render_markdown_document(ReportContext(make_findings(result)))
    assert text.startswith("# Does ALiBi help \\<here\\>?\n\nBased on perplexity on test, 3 seeds.")
    assert text.split("\n\n")[2:4] == ["## Verdict", f"- **helped**: {result['verdicts'][0]['summary']}"]
    assert "- Published results: " in text
    assert "## Published results" in documents.render_markdown_document(
        ReportContext(make_findings(result), is_full=True)
    )
