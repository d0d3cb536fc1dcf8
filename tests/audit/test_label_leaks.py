"""Labels that follow from text length or single tokens are reported; ordinary labels are not."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from headtohead.audit.data_checks.count_baselines import score_count_models
from headtohead.audit.result import CheckResult
from headtohead.data.encoding import TokenRows, TokenStream
from headtohead.experiment.loading import build_experiment
from headtohead.runner.corpus_description import describe_corpus

Mistake = Callable[[list[str], int, random.Random], list[str]]


def insert_in_order(words: list[str], draw: random.Random, *, is_reversed: bool) -> list[str]:
    """Insert two tokens at random positions, in the given order or reversed."""
    first, second = sorted(draw.sample(range(4, len(words) - 3), 2)) if len(words) > 9 else (3, 5)
    tokens = ("bbb", "aaa") if is_reversed else ("aaa", "bbb")
    return [*words[:first], tokens[0], *words[first:second], tokens[1], *words[second:]]


def insert_pairs(words: list[str], draw: random.Random, *, is_reversed: bool) -> list[str]:
    """Insert some of 20 pairs of adjacent tokens, in the given order or reversed."""
    pairs = [[f"x{i}", f"y{i}"] for i in draw.sample(range(20), 3)]
    tokens = [token for pair in pairs for token in (pair[::-1] if is_reversed else pair)]
    return [*words[:4], *tokens, *words[4:]]


def audit(folder: Path, mistake: Mistake, num_classes: int = 2) -> CheckResult:
    """Write rows whose first word indicates the class in 70 % of the cases, add a mistake, and audit them."""
    draw = random.Random(0)
    folder.mkdir(exist_ok=True)
    for name, rows in (("train", 400), ("test", 100)):
        lines = ["label\ttext"]
        for _ in range(rows):
            label = draw.randrange(num_classes)
            hint = label if draw.random() < 0.7 else draw.randrange(num_classes)
            words = [f"hint{hint}", *(f"w{draw.randrange(200)}" for _ in range(draw.randrange(6, 12)))]
            lines.append(f"c{label}\t{' '.join(mistake(words, label, draw))}")
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    raw = {
        "question": "Does it help?",
        "task": "classify",
        "data": {"source": str(folder)},
        "model": {"width": 8, "layers": 1, "heads": 2, "context": 32},
        "variants": {"alibi": {"model": {"position": "alibi"}}},
    }
    return next(
        result for result in describe_corpus(build_experiment(raw, "leak")).audits if result.name == "label leaks"
    )


@pytest.mark.parametrize("num_classes", [2, 4])
def test_ordinary_labels_are_not_accused(tmp_path: Path, num_classes: int) -> None:
    result = audit(tmp_path / "text", lambda words, label, draw: words, num_classes)
    assert result.passed is True, str(result)


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda words, label, draw: [*words, f"c{label}"], "label follows from tokens alone"),
        (lambda words, label, draw: [*words, "w1"] * (1 + label), "label follows from the number of tokens alone"),
        (
            lambda words, label, draw: [*(str(draw.randrange(2)) for _ in range(4)), *words, str(label)],
            "label follows from the first and last token alone",
        ),
        (
            lambda words, label, draw: [first := draw.choice("xz"), *words, first if label else "xz".strip(first)],
            "label follows from the first and last token alone",
        ),
        (
            lambda words, label, draw: insert_in_order(words, draw, is_reversed=bool(label)),
            "label follows from the order of 'aaa' and 'bbb' alone",
        ),
        (
            lambda words, label, draw: insert_pairs(words, draw, is_reversed=bool(label)),
            "label follows from pairs of tokens alone",
        ),
        (
            lambda words, label, draw: [*words, str(draw.randrange(500) + 500 * label), "w7"],
            "label follows from the first number alone",
        ),
        (
            lambda words, label, draw: [str(draw.randrange(90)), *words, str(2 * draw.randrange(400) + label), "w7"],
            "label follows from the last digit of the last number alone",
        ),
        (
            lambda words, label, draw: [*words[:2], f"m{label}", *words[2:], "m0", "m1"],
            "label follows from token 3 alone",
        ),
        (
            lambda words, label, draw: [*words, "[draft]"] if label == 1 and draw.random() < 0.5 else words,
            "Many labels follow from tokens alone",
        ),
    ],
    ids=[
        "label in the text",
        "length",
        "last token",
        "first and last token equal",
        "order of two tokens",
        "order of many pairs",
        "range of a number",
        "even numbers",
        "third token",
        "mark of one class",
    ],
)
def test_labels_that_counts_give_away_are_reported(tmp_path: Path, mistake: Mistake, words: str) -> None:
    result = audit(tmp_path / "text", mistake)
    assert result.passed is False and words in result.interpretation
    if "Many" in words:
        assert "draft" in result.observation and "all of one class" in result.observation


def test_losses_of_count_models_are_those_of_the_formulas() -> None:
    draw = np.random.default_rng(0)
    tokens = {name: torch.tensor(draw.integers(0, 5, size)) for name, size in (("train", 60), ("test", 30))}
    offsets = {name: torch.arange(0, len(ids) + 1, 10) for name, ids in tokens.items()}
    streams = {name: TokenStream(name, ids) for name, ids in tokens.items()}
    rows = {name: TokenRows(name, ids, offsets[name]) for name, ids in tokens.items()}
    for encoded, is_row in ((streams, False), (rows, True)):
        pairs = {
            name: [(int(ids[i]), int(ids[i + 1])) for i in range(len(ids) - 1) if not is_row or (i + 1) % 10]
            for name, ids in tokens.items()
        }
        train = [token for _, token in pairs["train"]]
        unigram = {token: (train.count(token) + 1) / (len(train) + 5) for token in range(5)}
        contexts = [context for context, _ in pairs["train"]]
        losses = [
            -np.log((pairs["train"].count((a, b)) + 5 * unigram[b]) / (contexts.count(a) + 5)) for a, b in pairs["test"]
        ]
        scores = score_count_models(encoded, 5)
        assert scores["uniform"] == {"test": pytest.approx(np.log(5))}
        assert scores["unigram"]["test"] == pytest.approx(np.mean([-np.log(unigram[b]) for _, b in pairs["test"]]))
        assert scores["bigram"]["test"] == pytest.approx(np.mean(losses))
