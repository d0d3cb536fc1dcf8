"""Test labels that do not follow from the text, and test text that is written differently, are reported."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from headtohead.audit.result import CheckResult
from headtohead.experiment.loading import build_experiment
from headtohead.runner.corpus_description import describe_corpus

Row = tuple[str, str]
Edit = Callable[[list[Row]], list[Row]]


def draw_rows(count: int, seed: int, hint_rate: float = 0.8) -> list[Row]:
    """Return rows of a label and a text with a word that indicates the label in most rows."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        label = draw.choice("ab")
        hint = label if draw.random() < hint_rate else "ab".replace(label, "")
        words = [f"hint{hint}", *(f"w{draw.randrange(150)}" for _ in range(8))]
        rows.append((label, " ".join(draw.sample(words, len(words)))))
    return rows


def audit(folder: Path, edit_test: Edit, *, num_test_rows: int = 150, hint_rate: float = 0.8) -> dict[str, CheckResult]:
    folder.mkdir()
    test = edit_test(draw_rows(num_test_rows, 1, hint_rate))
    for name, rows in (("train", draw_rows(400, 0, hint_rate)), ("test", test)):
        (folder / f"{name}.tsv").write_text("label\ttext\n" + "".join(f"{label}\t{text}\n" for label, text in rows))
    settings = {
        "question": "Does it help?",
        "task": "classify",
        "data": {"source": str(folder)},
        "model": {"width": 8, "layers": 1, "heads": 2, "context": 32},
    }
    return {result.name: result for result in describe_corpus(build_experiment(settings, "labels")).audits}


def shift_labels(rows: list[Row]) -> list[Row]:
    return [(rows[index - 1][0], text) for index, (_, text) in enumerate(rows)]


def swap_labels(rows: list[Row]) -> list[Row]:
    return [("b" if label == "a" else "a", text) for label, text in rows]


def select_one_class(rows: list[Row]) -> list[Row]:
    return sorted(rows)[:50]


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (shift_labels, "the labels of test do not follow from its text"),
        (swap_labels, "the labels of test do not follow from its text"),
        (select_one_class, "test has no row of 'b'"),
    ],
)
def test_labels_that_do_not_belong_to_the_rows_are_reported(tmp_path: Path, edit: Edit, problem: str) -> None:
    result = audit(tmp_path / "text", edit)["labels of test"]
    assert result.passed is False and not result.is_blocking
    assert problem in result.observation


@pytest.mark.parametrize("hint_rate", [0.5, 0.65, 0.8, 0.95])
def test_correct_labels_are_not_reported(tmp_path: Path, hint_rate: float) -> None:
    """Also if the text says nothing about the label."""
    assert audit(tmp_path / "text", list, hint_rate=hint_rate)["labels of test"].passed is True


def test_a_few_rows_that_all_are_predicted_are_no_label_leak(tmp_path: Path) -> None:
    def select_hinted(rows: list[Row]) -> list[Row]:
        return [(label, text) for label, text in rows if f"hint{label}" in text][:12]

    assert audit(tmp_path / "text", select_hinted)["label leaks"].passed is True


def test_test_text_that_the_tokenizer_does_not_know_is_reported(tmp_path: Path) -> None:
    results = audit(tmp_path / "text", lambda rows: [(label, text.upper()) for label, text in rows])
    assert results["unknown tokens"].passed is False
    assert "A large part of test is unknown to the tokenizer" in results["unknown tokens"].interpretation
    assert audit(tmp_path / "same", list)["unknown tokens"].passed is True
