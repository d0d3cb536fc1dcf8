"""A test split that is held out from the training rows is always reported."""

from pathlib import Path
from typing import Any

import pytest

from headtohead.config.experiment import Experiment
from headtohead.experiment import loading
from headtohead.runner.corpus_description import describe_corpus


def build(folder: Path) -> Experiment:
    raw: dict[str, Any] = {
        "question": "Is it stated?",
        "task": "language-model",
        "data": {"source": str(folder), "rows": "sentences"},
        "model": {"width": 16, "layers": 1, "heads": 2, "context": 8},
        "training": {"budget": "2 steps"},
        "variants": {"alibi": {"model": {"position": "alibi"}}},
    }
    return loading.build_experiment(raw, "held-out")


@pytest.mark.parametrize("has_test", [False, True])
def test_training_rows_that_become_the_test_split_are_stated(tmp_path: Path, has_test: bool) -> None:
    sizes = {"train": 200, "validation": 20, **({"test": 30} if has_test else {})}
    for name, size in sizes.items():
        rows = "\n".join(f"{name} row number {i} of this text" for i in range(size))
        (tmp_path / f"{name}.txt").write_text(rows + "\n")
    corpus = describe_corpus(build(tmp_path))
    stated = [audit.observation for audit in corpus.audits if audit.name == "held-out-test"]
    num_train = corpus.splits["train"].rows
    assert num_train == 200 if has_test else num_train < 200
    assert stated == (
        []
        if has_test
        else [f"the source has no test split, so {200 - num_train} of 200 training rows are held out as test"]
    )
