"""The teacher beside its students."""

import math

import pytest

from headtohead.report import distillation, distillation_terminal


@pytest.mark.parametrize(("of_teacher", "behind"), [(250.0, False), (350.0, True)])
def test_a_teacher_that_is_behind_its_student_is_said_aloud(of_teacher: float, behind: bool):
    shown = distillation.teacher(
        {
            "teacher": {"parameters": 2000, "scores": {"obama": {"loss": math.log(of_teacher), "count": 10}}},
            "pairing": {"logits": {"parameters": [500, 500]}},
            "corpus": {"splits": {"train": {"role": "train"}, "obama": {"role": "test"}}},
            "by_seed": {"baseline": [(0, 310.0), (1, 290.0)], "logits": [(0, 280.0), (1, 280.0)]},
        }
    )
    assert [row[2].text for row in shown.rows] == [f"{of_teacher:,.1f}", "300.0", "280.0"]
    assert ("behind the student" in shown.caption) is behind


def test_at_80_columns_no_word_is_broken(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    score = {"value": 0.1519, "over_documents": [0.133, 0.17], "over_seeds": [0.1, 0.2]}
    row = dict.fromkeys(distillation.ROUGE, score)
    row |= {"length": {"value": 17.5}, "copied-2": {"value": 0.78}, "unfinished": {"value": 0.19}}
    names = ["teacher", "before", "baseline", "taught"]
    contest = {"figures": dict.fromkeys(names, row), "documents": 50, "pairs": [], "claims": [], "signature": "rouge"}
    distillation_terminal.show_distillation({"distilled": contest})
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    words = {word for line in lines for word in line.split()}
    assert {"unfinished", "summaries", "training", "R-Lsum", "0.1519", "[0.133,", "0.170]"} <= words
