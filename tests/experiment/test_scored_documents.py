"""Every score has a document, and verdicts receive the document names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headtohead.experiment import loading
from headtohead.experiment.run_folder import ExperimentRuns
from headtohead.findings.evaluation_sets import EvaluationSet
from headtohead.findings.example_scores import stack_example_scores
from headtohead.runner.run_experiment import run_experiment

pytestmark = pytest.mark.usefixtures("in_process_workers")


@pytest.mark.parametrize("rows", ["stream", "sentences"])
def test_scores_carry_the_documents_of_the_corpus(tmp_path: Path, rows: str) -> None:
    for name, count in (("train", 60), ("test", 24)):
        lines = [{"text": f"{name} text {i} of many", "document": f"play {i // 8}"} for i in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    settings: dict[str, Any] = {
        "question": "?",
        "task": "language-model",
        "seeds": 2,
        "data": {"source": str(tmp_path), "rows": rows, "validation_fraction": 0},
        "model": {"width": 8, "layers": 1, "heads": 1, "context": 12},
        "training": {"budget": "2 steps", "batch_size": 4},
        "variants": {"wide": {"model": {"width": 16}}},
    }
    run_experiment(loading.build_experiment(settings, "documents"), tmp_path / "runs", num_workers=1)
    runs = ExperimentRuns(tmp_path / "runs")
    assert runs.corpus.splits["test"].documents == ["play 0", "play 1", "play 2"]
    finished = runs.finished("baseline")
    columns = finished[0].scores
    scores = stack_example_scores(finished, runs.corpus, EvaluationSet("test"), "perplexity")
    assert sorted(set(scores.documents)) == ["test: play 0", "test: play 1", "test: play 2"]
    counts = {name: scores.weights[np.array(scores.documents) == name].sum() for name in set(scores.documents)}
    # 5 words and, in sentences, a stop token; the first token of a stream is not predicted.
    per_play = 8 * (5 + (rows == "sentences"))
    assert sorted(counts.values()) == [per_play - (rows == "stream"), per_play, per_play]
    assert len(columns["test.document_digests"]) == 3
    assert columns["test.counts"].sum() == scores.weights.sum()
    assert columns["test.unknown"].sum() == 24 - (rows == "stream")  # the word "test" does not occur in train
