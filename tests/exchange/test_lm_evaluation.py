"""lm-evaluation-harness computes the scores of `h2h score`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.exchange.tiny_runs import SIZES, write_run

from headtohead.generation.generate import generate
from headtohead.generation.likelihood import score_truncated_continuations
from headtohead.saved_models.inference import score_text
from headtohead.saved_models.open_model import open_model

CONTEXT = SIZES["context"]
WORDS = [f"w{(7 * i + i * i) % 20}" for i in range(60)]
TEXTS = [" ".join(WORDS[:length]) for length in (2, 9, CONTEXT + 1, 2 * CONTEXT + 1)]
"""Non-overlapping blocks of `h2h score` and the windows of the harness are the same for these lengths."""


@torch.no_grad()
def test_continuations_are_scored_from_the_longest_context_that_fits(tmp_path: Path) -> None:
    model = write_run(tmp_path / "run", {"position": "rope"})
    ids = torch.randint(2, 22, (60,), generator=torch.Generator().manual_seed(0)).tolist()
    pairs = [(ids[:a], ids[a:b]) for a, b in [(3, 5), (1, 17), (0, 6), (30, 33), (4, 4), (40, 41), (5, 5 + CONTEXT)]]
    for (context, continuation), score in zip(
        pairs, score_truncated_continuations(model, pairs, batch_size=3), strict=True
    ):
        window = [*context, *continuation][-(CONTEXT + 1) :]
        log_probabilities = model(torch.tensor([window[:-1]])).logits[0].double().log_softmax(-1)
        num_scored = len(continuation) if context else len(continuation) - 1
        expected = [log_probabilities[i - 1, window[i]] for i in range(len(window) - num_scored, len(window))]
        assert score.log_likelihood == pytest.approx(float(sum(expected)), abs=1e-5)
        most_likely = log_probabilities.argmax(-1).tolist()
        assert score.is_greedy == (most_likely[len(window) - 1 - num_scored :] == window[len(window) - num_scored :])


@pytest.mark.parametrize("text", TEXTS)
def test_whole_texts_have_the_log_likelihood_of_score(text: str, tmp_path: Path) -> None:
    write_run(tmp_path / "run", {})
    bundle = open_model(tmp_path / "run")
    (score,) = score_truncated_continuations(bundle.model, [([], bundle.tokenizer.encode(text))], batch_size=4)
    assert score.log_likelihood == pytest.approx(
        -sum(token.loss for token in score_text(bundle, text).tokens), abs=1e-4
    )


def test_greedy_continuations_are_greedy(tmp_path: Path) -> None:
    write_run(tmp_path / "run", {})
    bundle = open_model(tmp_path / "run")
    prompt = bundle.tokenizer.encode(TEXTS[0])
    greedy = generate(bundle, [prompt], "greedy", max_new_tokens=6)[0].ids
    different = [*greedy[:-1], (greedy[-1] + 1) % 20]
    scores = score_truncated_continuations(bundle.model, [(prompt, greedy), (prompt, different)], batch_size=2)
    assert [score.is_greedy for score in scores] == [True, False]


def write_tasks(folder: Path) -> None:
    """Write a task of each type, with local data."""
    folder.mkdir()
    rows = [{"text": text, "start": text.split()[0], "end": " " + " ".join(text.split()[1:])} for text in TEXTS]
    (folder / "rows.json").write_text("\n".join(json.dumps(row) for row in rows))
    source = f"dataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {folder}/rows.json\ntest_split: test\n"
    for name, output_type, text, target in (
        ("rolling", "loglikelihood_rolling", "", "{{text}}"),
        ("pairs", "loglikelihood", "{{start}}", "{{end}}"),
        ("continue", "generate_until", "{{start}}", "{{end}}"),
    ):
        options = "generation_kwargs:\n  until: ['w3']\n  max_gen_toks: 8\n" if name == "continue" else ""
        metric = {"rolling": "word_perplexity", "pairs": "acc", "continue": "exact_match"}[name]
        (folder / f"{name}.yaml").write_text(
            f"task: {name}\n{source}output_type: {output_type}\ndoc_to_text: '{text}'\ndoc_to_target: '{target}'\n"
            f"{options}metric_list:\n  - metric: {metric}\n"
        )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("has_start_token", [False, True])
def test_harness_reports_the_scores_of_this_package(
    has_start_token: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed (extra lm-eval)")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    import lm_eval
    from lm_eval.tasks import TaskManager

    import headtohead.exchange.lm_evaluation  # noqa: F401  registers the model

    write_run(tmp_path / "run", {}, has_start_token=has_start_token)
    write_tasks(tmp_path / "tasks")
    results: Any = lm_eval.simple_evaluate(
        "headtohead",
        {"run": str(tmp_path / "run")},
        ["rolling", "pairs", "continue"],
        task_manager=TaskManager(include_path=str(tmp_path / "tasks"), include_defaults=False),
        bootstrap_iters=0,
    )
    bundle = open_model(tmp_path / "run")
    samples = {name: [sample["filtered_resps"] for sample in rows] for name, rows in results["samples"].items()}
    for row, text in enumerate(TEXTS):
        losses = [token.loss for token in score_text(bundle, text).tokens]
        losses = losses[:-1] if has_start_token else losses  # the stop token is no part of the text
        if row < 2 or not has_start_token:
            assert float(samples["rolling"][row][0]) == pytest.approx(-sum(losses), abs=1e-4)
        if row < 2:
            assert float(samples["pairs"][row][0][0]) == pytest.approx(-sum(losses[has_start_token:]), abs=1e-4)
        expected = generate(bundle, [text.split()[0]], "greedy", max_new_tokens=8, stop="w3")[0].text
        assert samples["continue"][row][0] == expected


@pytest.mark.filterwarnings("ignore")
def test_harness_command_finds_the_model(tmp_path: Path) -> None:
    pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed (extra lm-eval)")
    write_run(tmp_path / "run", {})
    write_tasks(tmp_path / "tasks")
    arguments = ["--model", "headtohead", "--model_args", f"run={tmp_path}/run", "--tasks", "rolling"]
    command = [sys.executable, "-m", "headtohead.exchange.lm_evaluation", *arguments]
    result = subprocess.run(
        [
            *command,
            "--include_path",
            str(tmp_path / "tasks"),
            "--output_path",
            str(tmp_path / "out"),
            "--batch_size",
            "2",
        ],
        env={**os.environ, "HF_DATASETS_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    (path,) = (tmp_path / "out").rglob("results_*.json")
    assert "word_perplexity,none" in json.loads(path.read_text())["results"]["rolling"]
