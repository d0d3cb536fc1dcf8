"""The report section on a teacher and its students."""

import math

import pytest

from headtohead.distillation import tables, terminal
from headtohead.report import page
from headtohead.report.context import ReportContext
from headtohead.report.documents import render_markdown_document

from .make_findings import MEASURE, make_findings


@pytest.mark.parametrize(("of_teacher", "behind"), [(250.0, False), (350.0, True)])
def test_a_teacher_that_is_behind_its_student_is_reported(of_teacher: float, behind: bool):
    teacher_table = tables.build_teacher_table(
        make_findings(
            {
                "teacher": {"parameters": 2000, "scores": {"obama": {"loss": math.log(of_teacher), "count": 10}}},
                "pairing": {"logits": {"parameters": [500, 500]}},
                "corpus": {"splits": {"train": {"role": "train"}, "obama": {"role": "test"}}},
                "primary_scores": {"baseline": [(0, 310.0), (1, 290.0)], "logits": [(0, 280.0), (1, 280.0)]},
            }
        )
    )
    assert [row[2].text for row in teacher_table.rows] == [f"{of_teacher:,.1f}", "299.8", "280.0"]  # geometric means
    assert ("worse than the student" in teacher_table.caption) is behind


def test_at_80_columns_no_word_is_broken(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    score = {"value": 0.1519, "over_documents": [0.133, 0.17], "over_seeds": [0.1, 0.2]}
    row = {"rouge": {key: {**MEASURE, **score} for key in tables.ROUGE_TITLES}, "length": {**MEASURE, "value": 17.5}}
    row |= {"copied": {"copied-2": 0.78}, "unfinished": 0.19}
    names = ["teacher", "untrained", "baseline", "distilled"]
    summarization = {
        "scores": dict.fromkeys(names, row),
        "num_documents": 50,
        "pairs": [],
        "claims": [],
        "signature": "rouge",
    }
    terminal.print_distillation(make_findings({"summarization": summarization}))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    words = {word for line in lines for word in line.split()}
    assert {"unfinished", "summaries", "training", "R-Lsum", "0.1519", "[0.133,", "0.170]"} <= words


def pair(who: str, against: str, word: str, effect: float, measure: str = "rouge-1") -> dict[str, object]:
    interval = [effect - 0.02, effect + 0.02]
    result = {
        "metric": measure,
        "system": who,
        "reference": against,
        "outcome": word,
        "effect": effect,
        "interval": interval,
    }
    return {**result, "seeds": 3, "examples": 199, "bootstrap": {"interval": interval}}


CONTEST = {
    "num_documents": 199,
    "pairs": [
        pair("untrained", "teacher", "hurt", -0.25),
        pair("baseline", "teacher", "helped", 0.0842),
        pair("distilled", "teacher", "hurt", -0.1),
        pair("distilled", "untrained", "helped", 0.15),
        pair("distilled", "baseline", "cannot tell", -0.005),
        pair("distilled", "baseline", "hurt", -0.2, "rouge-2"),
    ],
}
VERDICT = {
    "variant": "distilled",
    "outcome": "hurt",
    "summary": "distilled hurt: perplexity 290 % higher.",
    "effect": 2.9,
}


def test_summaries_are_judged_by_rouge_before_perplexity():
    output = [
        row.summary.replace("\u00a0", " ")
        for row in tables.build_rouge_verdict_cards(make_findings({"summarization": CONTEST}))
    ]
    behind, ahead, far = output
    assert behind == (
        "Student, distilled compared with student trained on human summaries: cannot tell. ROUGE-1 0.0050 lower "
        "(95 % confidence interval −0.0250 to +0.0150; 3 seeds, 199 documents)."
    )
    assert ahead.startswith(
        "Student trained on human summaries scores higher than teacher: ROUGE-1 0.0842 higher (95 % confidence interval"
    )
    assert far.startswith(
        "Student, distilled scores lower than teacher: ROUGE-1 0.1000 lower (95 % confidence interval −0.1200"
    )
    findings = {"summarization": CONTEST, "verdicts": [VERDICT], "metric": "perplexity"}
    markdown_document = render_markdown_document(ReportContext(make_findings(findings)))
    assert markdown_document.index("ROUGE-1") < markdown_document.index("perplexity")


def test_the_page_leads_with_what_each_writes():
    output = page.render_page(make_findings({"summarization": CONTEST, "verdicts": [VERDICT], "metric": "perplexity"}))
    assert "Based on ROUGE-1 of the summaries of 199 held-out documents, 3 seeds." in output
    assert output.index('id="headline"') < output.index("By perplexity") < output.index("distilled hurt: perplexity")
    plain = page.render_page(make_findings({"verdicts": [VERDICT], "metric": "perplexity"}))
    assert 'id="headline"' not in plain and "By perplexity" not in plain
    assert tables.build_rouge_verdict_cards(make_findings({"verdicts": [VERDICT]})) == []
