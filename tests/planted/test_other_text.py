"""Variants scored on a different text than the baseline are rejected before training, and never judged.

Before digests of the predicted text were recorded, these mistakes gave confident verdicts: "helped" by 68.6 %
(test_rows), 65.5 % (context), 99.3 % (20 words) and 10.1 % (bytes), "hurt" by 3.4 % (another corpus), and an error
after training (other names of the splits).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from headtohead.config.experiment import Experiment
from headtohead.config.tables.data import DataConfig
from headtohead.config.trial_settings import build_trial
from headtohead.data.sources.loading import load_corpus
from headtohead.errors import RequestError
from headtohead.experiment import loading
from headtohead.experiment.run_folder import Run
from headtohead.findings.verdicts import VerdictBuilder
from headtohead.runner.corpus_description import describe_corpus
from headtohead.runner.preflight import check_scored_text
from headtohead.runner.run_experiment import run_experiment
from headtohead.trials.trial import run_trial
from headtohead.verdict.interim import AlphaBudget
from headtohead.verdict.record import Verdict

OTHER_TEXT: dict[str, tuple[dict[str, Any], str]] = {
    "fewer rows": ({"data": {"test_rows": 20}}, r"20 rows of hbush instead of 120 \(data.test_rows\)"),
    "short context": ({"model": {"context": 4}}, r"truncates 120 of 120 rows instead of \d+ \(model.context\)"),
    "20 words": (
        {"data": {"tokenizer": {"kind": "words", "vocab_size": 20}}},
        r"[\d,]+ words are unknown to its tokenizer instead of \d+ \(data.tokenizer\)",
    ),
    "bytes": ({"data": {"tokenizer": "bytes"}}, r"truncates \d+ of 120 rows instead of 0 \(data.tokenizer\)"),
    "untruncated bytes": (
        {"data": {"tokenizer": "bytes"}, "model": {"context": 400}},
        r"0 words are unknown to its tokenizer instead of \d+ \(data.tokenizer, model.context\)",
    ),
    "lowercase": (
        {"data": {"tokenizer": {"kind": "words", "lowercase": True}}},
        r"predicts a different text of hbush",
    ),
    "another corpus": ({"data": {"source": "OTHER"}}, r"a different text named hbush \(data.source\)"),
    "other names": ({"data": {"source": "NEWS"}}, r"scored on news instead of hbush, obama and wbush \(data.source\)"),
    "stop tokens": ({"data": {"rows": "stream"}}, r"predicts a different text of hbush"),
}


def write_corpus(folder: Path, start: int, tests: tuple[str, ...] = ("hbush", "obama", "wbush")) -> str:
    """Write distinct sentences about presidents."""
    corpus = load_corpus(DataConfig(), has_labels=False)
    rows = dict.fromkeys(row for split in corpus.splits.values() for row in split.rows if len(row.split()) >= 9)
    texts = list(rows)[start:]
    folder.mkdir()
    sizes = {"train": 600, "validation": 40, **{f"test_{name}": 120 for name in tests}}
    for name, size in sizes.items():
        (folder / f"{name}.txt").write_text("\n".join(texts[:size]) + "\n")
        texts = texts[size:]
    return str(folder)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Experiment]:
    folder = tmp_path_factory.mktemp("texts")
    sources = {
        "BASE": write_corpus(folder / "base", 0),
        "OTHER": write_corpus(folder / "other", 1300),
        "NEWS": write_corpus(folder / "news", 1300, ("news",)),
    }

    def build_experiment(variants: Mapping[str, Any], **data: Any) -> Experiment:
        def locate(source: Mapping[str, Any]) -> dict[str, Any]:
            return {**source, "source": sources[source["source"]]} if "source" in source else dict(source)

        settings = {
            "question": "Is it scored on the same text?",
            "task": "language-model",
            "seeds": 2,
            "data": locate({"rows": "sentences", "source": "BASE", **data}),
            "model": {"width": 16, "layers": 1, "heads": 1, "context": 80},
            "training": {"budget": "4 steps", "batch_size": 8, "optimizer": {"kind": "adamw", "lr": 0.01}},
            "variants": {name: {**v, "data": locate(v.get("data", {}))} for name, v in variants.items()},
        }
        return loading.build_experiment(settings, "texts")

    return build_experiment


@pytest.mark.parametrize("mistake", OTHER_TEXT)
def test_other_text_is_rejected_before_training(build: Callable[..., Experiment], mistake: str) -> None:
    changes, reason = OTHER_TEXT[mistake]
    with pytest.raises(RequestError, match=f"variants.other: cannot be compared with the baseline.*{reason}"):
        check_scored_text(build({"other": changes}))


def test_nothing_is_written_for_a_variant_that_cannot_be_compared(
    build: Callable[..., Experiment], tmp_path: Path
) -> None:
    with pytest.raises(RequestError, match="instead of 120"):
        run_experiment(build({"other": OTHER_TEXT["fewer rows"][0]}), tmp_path / "runs", num_workers=1)
    assert not (tmp_path / "runs").exists()


SAME_TEXT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "another context of a stream": ({"rows": "stream"}, {"model": {"context": 16}}),
    "bytes instead of bpe": (
        {"rows": "stream", "tokenizer": {"kind": "bpe", "vocab_size": 400}},
        {"data": {"tokenizer": "bytes"}},
    ),
    "word dropout": ({}, {"data": {"word_dropout": 0.1}}),
    "longer context of sentences": ({"tokenizer": "bytes"}, {"model": {"context": 1024}}),
}


@pytest.mark.parametrize("change", list(SAME_TEXT)[:3])
def test_same_text_is_not_rejected(build: Callable[..., Experiment], change: str) -> None:
    data, changes = SAME_TEXT[change]
    check_scored_text(build({"other": changes}, **data))


def test_longer_context_that_truncates_fewer_rows_is_rejected(build: Callable[..., Experiment]) -> None:
    data, changes = SAME_TEXT["longer context of sentences"]
    with pytest.raises(RequestError, match=r"its context truncates 0 of 120 rows instead of \d+"):
        check_scored_text(build({"other": changes}, **data))


@pytest.fixture(scope="module")
def train(build: Callable[..., Experiment], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[int, Run]]:
    """Train one variant of an experiment with two seeds, without the preflight check."""
    trained: dict[str, dict[int, Run]] = {}

    def run(experiment: Experiment, variant: str) -> dict[int, Run]:
        trials = [build_trial(experiment, variant, seed) for seed in range(2)]
        key = trials[0].model_dump_json()
        if key not in trained:
            folder = tmp_path_factory.mktemp("runs")
            for trial in trials:
                run_trial(trial, folder / f"seed-{trial.seed}", device="cpu")
            trained[key] = {trial.seed: Run(folder / f"seed-{trial.seed}") for trial in trials}
        return trained[key]

    return run


def judge(experiment: Experiment, baseline: Mapping[int, Run], variant: Mapping[int, Run]) -> Verdict:
    finished = {"baseline": baseline, "other": variant}
    builder = VerdictBuilder(experiment, finished, describe_corpus(experiment), {}, (), AlphaBudget())
    (verdict,) = builder.build_all_verdicts().primary
    return verdict


@pytest.mark.parametrize("mistake", ["fewer rows", "20 words", "another corpus", "other names"])
def test_runs_on_other_text_are_not_judged(
    build: Callable[..., Experiment], train: Callable[..., dict[int, Run]], mistake: str
) -> None:
    changes, reason = OTHER_TEXT[mistake]
    experiment = build({"other": changes})
    verdict = judge(experiment, train(experiment, "baseline"), train(experiment, "other"))
    assert verdict.outcome == "not comparable"
    assert verdict.withheld
    assert re.search(reason, verdict.summary)


def test_one_run_on_other_text_is_reported(
    build: Callable[..., Experiment], train: Callable[..., dict[int, Run]]
) -> None:
    experiment = build({"other": OTHER_TEXT["fewer rows"][0]})
    baseline, fewer = (train(experiment, name) for name in experiment.names)
    verdict = judge(build({"other": {"training": {"budget": "31 steps"}}}), baseline, {0: baseline[0], 1: fewer[1]})
    assert verdict.outcome == "not comparable"
    assert "predicted a different text of hbush with seed 1 than with seed 0" in verdict.summary


def test_tokenizers_are_compared_per_byte_of_each_document(
    build: Callable[..., Experiment], train: Callable[..., dict[int, Run]]
) -> None:
    data, changes = SAME_TEXT["bytes instead of bpe"]
    experiment = build({"other": changes}, **data)
    other = train(experiment, "other")
    verdict = judge(experiment, train(experiment, "baseline"), other)
    # The first row is left out; every byte after it is predicted by both.
    splits = ("hbush", "obama", "wbush")
    size = sum(len(row.encode()) + 1 for name in splits for row in read_rows(build, name)[1:])
    losses = [
        (run.scores[f"{name}.losses"] * (1 - run.scores[f"{name}.first_row"])).sum()
        for run in other.values()
        for name in splits
    ]
    assert verdict.variant_mean == pytest.approx(math.exp(sum(losses) / len(other) / size))
    assert verdict.examples == 3


def read_rows(build: Callable[..., Experiment], name: str) -> list[str]:
    return (Path(build({}).data.source) / f"test_{name}.txt").read_text().splitlines()
