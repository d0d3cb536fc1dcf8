"""The teacher beside its students."""

import math

import pytest

from headtohead.report import distillation


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
