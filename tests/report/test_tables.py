import csv
import io
import re
from collections.abc import Callable
from typing import Any

import pytest

from headtohead.presentation.renderers import csv_tables, latex, markdown
from headtohead.presentation.table import Cell, Column, Table
from headtohead.replication.published import build_published_table
from headtohead.report import documents
from headtohead.report.context import ReportContext
from headtohead.report.sections import audits, build_tables, curves, examples, pairing, scores

from .typed import typed

Findings = dict[str, Any]
NASTY = "a|b_c\n`d` <b> & 50 % \\x {y} ~ ^ # $"


def texts(table: Table) -> list[list[str]]:
    return [[cell.text for cell in row] for row in table.rows]


def test_tables_come_in_the_report_s_order_and_only_with_rows(findings: Callable[..., Findings]) -> None:
    names = [table.name for table in build_tables(typed(findings({"v": 0.1})))]
    assert names == [
        "verdicts",
        "precision",
        "others",
        "settings",
        "scores",
        "results",
        "curves",
        "samples",
        "sentences",
        "cost",
        "pairing",
        "audits",
        "data_audits",
        "corpus",
        "published",
        "versions",
    ]
    assert build_tables(typed({})) == []


def test_the_share_of_unknown_words_stands_beside_every_perplexity(findings: Callable[..., Findings]) -> None:
    found = findings({"v": 0.1})
    assert [row[-1] for row in texts(scores.build_scores_by_seed_table(typed(found)))] == ["2.1\N{NO-BREAK SPACE}%"] * 2
    assert texts(scores.build_scores_table(typed(found)))[-1] == ["unknown words", "2.1\N{NO-BREAK SPACE}%"]
    found["corpus"]["splits"]["test"]["unknown"] = 0.0
    assert scores.build_scores_by_seed_table(typed(found)).columns[-1].name == "seed 2"
    by_rows = findings({"v": 0.1}, metric="accuracy")
    assert scores.build_scores_by_seed_table(typed(by_rows)).columns[-1].name == "seed 2"


def test_every_table_has_the_same_mean(findings: Callable[..., Findings]) -> None:
    found = findings({"v": 0.1})
    found["scores"] = {"baseline": {"test": [[0, 100.0], [1, 400.0]]}}
    found["curves"] = {"baseline": {"test": {"0": [[0, 900.0], [9, 100.0]], "1": [[0, 900.0], [9, 400.0]]}}}
    content = typed(found)
    assert scores.build_scores_table(content).rows[0][1].value == pytest.approx(200)
    assert scores.build_scores_by_seed_table(content).rows[0][2].value == pytest.approx(200)
    assert "200.0" in texts(curves.build_curves_table(content))[-1]


def test_scores_name_the_weights_they_are_of(findings: Callable[..., Findings]) -> None:
    found = findings({"v": 0.1})
    assert scores.build_scores_table(typed(found)).caption.startswith("Perplexity with the final weights: ")
    found["experiment"]["training"] = {"load_best_model_at_end": True}
    assert scores.build_scores_table(typed(found)).caption.startswith("Perplexity with the selected weights: ")
    found["experiment"]["training"] = {}
    found["experiment"]["variants"] = {"v": {"training": {"load_best_model_at_end": True}}}
    assert scores.build_scores_table(typed(found)).caption.startswith("Perplexity with the selected weights: ")


def test_what_a_variant_changes_stands_beside_the_baseline_s_value(findings: Callable[..., Findings]) -> None:
    found = findings({"v": 0.1})
    assert texts(pairing.build_changed_settings_table(typed(found))) == [["v", "model.position", "learned", "alibi"]]
    found["pairing"]["v"] |= {"changes_multiple_settings": True}
    assert texts(pairing.build_changed_settings_table(typed(found)))[0][-1] == "changes several settings"


def test_a_single_unequal_tensor_or_other_batches_break_the_pairing(findings: Callable[..., Findings]) -> None:
    found = findings({"v": 0.1})
    assert "paired: " in texts(pairing.build_pairing_table(typed(found)))[0][-1]
    for broken in ({"equal_tensors": 56}, {"same_batches": False}, {"shared_tensors": None, "equal_tensors": None}):
        spoilt = {"pairing": {"v": found["pairing"]["v"] | broken}}
        assert texts(pairing.build_pairing_table(typed(spoilt)))[0][-1].startswith("not paired: ")


def test_failed_audits_come_first_and_mild_ones_are_notes(findings: Callable[..., Findings]) -> None:
    found = findings({"v": 0.1})
    assert [row[1] for row in texts(audits.build_data_audits_table(typed(found)))] == ["failed", "note"]
    found["audits"]["v"][0]["passed"] = False
    assert texts(audits.build_audits_table(typed(found)))[0][:3] == ["v", "cache", "failed"]


def test_notes_take_one_line_and_only_blocking_failures_a_card(findings: Callable[..., Findings]) -> None:
    section = audits.build_data_section(ReportContext(typed(findings({"v": 0.1}))))
    (block, *_) = section.blocks
    assert [audit["is_blocking"] for audit in block.variables["failed"]] == [True]
    assert len(block.variables["notes"]) == 1


def test_costs_are_given_as_ratio_to_the_baseline(findings: Callable[..., Findings]) -> None:
    baseline, variant = pairing.build_cost_table(typed(findings({"v": 0.1}))).rows
    assert [cell.value for cell in variant[5:7]] == [0.06, pytest.approx(1.2)]
    assert baseline[5].value == 0.05


def test_a_published_figure_on_other_data_is_shown_but_not_compared(findings: Callable[..., Findings]) -> None:
    found = findings({"v": 0.1})
    ours, theirs = texts(build_published_table(typed(found)))
    assert ours[0] == "ours, baseline"
    assert ours[1].replace("\u00a0", " ") == "400.0 (390.0 to 410.0)"
    assert theirs[1].replace("\u00a0", " ") == "375.0 (−6.2 %)"
    found["published"][0]["other_data"] = True
    other = texts(build_published_table(typed(found)))[1]
    assert (other[1], other[2]) == ("375.0", "other data: not compared; one seed")
    assert build_published_table(typed(found)).long_form.rows[0][8].value is None


def test_published_figures_form_one_row_a_source_and_one_column_a_text(findings: Callable[..., Findings]) -> None:
    found = findings({"v": 0.1})
    (one,) = found["published"]
    found["published"] = [one, one | {"split": "obama"}, one | {"step": 100, "split": "obama"}, one | {"source": "A"}]
    table = build_published_table(typed(found))
    assert [column.title for column in table.columns] == ["source", "test", "obama", "note"]
    names = ["ours, baseline", "B, baseline", "A, baseline", "ours, baseline at step 100", "B, baseline at step 100"]
    assert [row[0] for row in texts(table)] == names


def test_published_rows_are_sorted_by_variant_and_step(findings: Callable[..., Findings]) -> None:
    found = findings({"v": 0.1})
    (one,) = found["published"]
    steps = [{"variant": "v"}, {"step": "10 epochs"}, {"step": "2 epochs"}, {}]
    found["published"] = [one | changes for changes in steps]
    names = [row[0] for row in texts(build_published_table(typed(found))) if row[0].startswith("ours")]
    assert names == ["ours, baseline", "ours, baseline after 2 epochs", "ours, baseline after 10 epochs", "ours, v"]


def test_sentences_give_perplexity_or_the_class_by_seeds(findings: Callable[..., Findings]) -> None:
    found = findings({"v": 0.1})
    first, second = texts(examples.build_probe_sentences_table(typed(found)))
    assert first == ["short", "We will meet.", "baseline", "200.0 (190.0 to 210.5)"]
    assert second == ["", "", "v", "200.0 (190.0 to 210.5)"]
    assert "short,We will meet.,v," in csv_tables.render_csv(examples.build_probe_sentences_table(typed(found))), (
        "a program gets every cell"
    )
    found["sentences"] = {"v": {"short": {"0": ["Obama", 0.9], "1": ["Obama", 0.7], "2": ["Bush", 0.6]}}}
    said = texts(examples.build_probe_sentences_table(typed(found)))[0][3].replace("\u00a0", " ")
    assert said == "Obama (2 of 3 seeds, confidence 80.0 %); Bush (1 of 3 seeds, confidence 60.0 %)"


def test_a_confusion_table_has_counts_and_shares_of_the_true_class() -> None:
    found = {"confusion": {"labels": ["a", "b"], "matrices": {"v": [[3, 1], [0, 0]]}}}
    (table,) = examples.build_confusion_tables(typed(found))
    shown = [[text.replace("\u00a0", " ") for text in row] for row in texts(table)]
    assert shown == [["a", "3 (75.0 %)", "1 (25.0 %)"], ["b", "0 (0.0 %)", "0 (0.0 %)"]]


def nasty_table() -> Table:
    columns = (Column("name", NASTY), Column("range", "range", True))
    rows = ((Cell(NASTY, NASTY), Cell("1 to 2", [1.5, 2.5])), (Cell("=1+1", "=1+1"), Cell("–")))
    return Table("nasty", "Nasty", NASTY, columns, rows)


def test_a_markdown_cell_cannot_leave_its_cell() -> None:
    lines = markdown.render_markdown_table(nasty_table()).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 4
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 3 for line in table)
    assert "<b>" not in markdown.render_markdown_table(nasty_table()).replace("\\<b\\>", "")


def test_csv_reads_back_to_the_plain_values() -> None:
    head, first, second = csv.reader(io.StringIO(csv_tables.render_csv(nasty_table())))
    assert head == ["name", "range_low", "range_high"]
    assert first == [NASTY, "1.5", "2.5"]
    assert second == ["'=1+1", "", ""], "a spreadsheet must not run it as a formula"


def test_latex_escapes_every_letter_that_latex_would_act_on() -> None:
    text = latex.render_latex_table(nasty_table())
    assert r"a\textbar{}b\_c `d` \textless{}b\textgreater{} \& 50 \% \textbackslash{}x \{y\}" in text
    assert r"\begin{tabular}{p{0.3\linewidth}r}" in text, "long words get a column that breaks lines"
    assert all(rule in text for rule in (r"\toprule", r"\midrule", r"\bottomrule"))
    rows = text.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
    assert all(len(re.findall(r"(?<!\\)&", row)) == 1 and row.endswith(r"\\") for row in rows)


def test_long_words_share_the_line_of_a_latex_table(findings: Callable[..., Findings]) -> None:
    found = findings({"v": -0.1})
    for one in found["data_audits"]:
        one |= {"procedure": "many words " * 9, "observation": "many words " * 5, "interpretation": "few"}
    assert r"{llp{0.25\linewidth}p{0.25\linewidth}l}" in latex.render_latex_table(
        audits.build_data_audits_table(typed(found))
    )


def test_latex_has_no_letter_left_that_plain_latex_does_not_know(findings: Callable[..., Findings]) -> None:
    for table in build_tables(typed(findings({"v": -0.1}))):
        assert latex.render_latex_table(table).isascii(), table.name


def test_the_markdown_report_opens_with_question_and_verdicts(findings: Callable[..., Findings]) -> None:
    found = findings({"v": -0.1})
    text = documents.render_markdown_document(ReportContext(typed(found)))
    assert text.startswith("# Does ALiBi help \\<here\\>?\n\nBased on perplexity on test, 3 seeds.")
    assert text.split("\n\n")[2:4] == ["## Verdict", f"- **helped**: {found['verdicts'][0]['summary']}"]
    assert "- Published results: " in text
    assert "## Published results" in documents.render_markdown_document(ReportContext(typed(found), is_full=True))
