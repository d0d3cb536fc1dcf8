"""End-to-end tests of `h2h generate`."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from .test_bad_input import h2h, write_experiment  # noqa: F401


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run folder of a tiny trained model."""
    from headtohead.experiment import run_folder
    from headtohead.experiment.loading import build_experiment as experiment
    from headtohead.trials import trial

    folder = tmp_path_factory.mktemp("generate")
    text = folder / "text"
    text.mkdir()
    rows = "the people will defend the peace .\nour nation must build new schools .\n" * 40
    for name in ("train", "test", "validation"):
        (text / f"{name}.txt").write_text(rows)
    request = experiment(
        {
            "question": "?",
            "task": "language-model",
            "seeds": 1,
            "data": {"source": str(text)},
            "model": {"width": 16, "layers": 1, "heads": 2, "context": 8},
            "training": {"budget": "60 steps", "batch_size": 8, "optimizer": {"kind": "adamw", "lr": 0.01}},
            "variants": {"alibi": {"model": {"position": "alibi"}}},
        }
    )
    trial.run_trial(run_folder.build_trials(request, range(1))[0], folder / "run", device="cpu")
    return folder / "run"


def test_a_text_is_continued_and_shown_with_its_prompt(h2h: Any, run: Path) -> None:  # noqa: F811
    code, out, err = h2h("generate", run, "the people", "--strategy", "greedy", "--max-new-tokens", "4")
    assert (code, err) == (0, "")
    assert out == "the people will defend the peace\n"


def test_samples_are_shown_one_after_the_other(h2h: Any, run: Path) -> None:  # noqa: F811
    request = (
        "the people",
        "our nation",
        "--strategy",
        "top-p",
        "--p",
        "0.7",
        "--samples",
        "3",
        "--max-new-tokens",
        "4",
    )
    code, out, _ = h2h("generate", run, *request)
    assert code == 0
    heads = [line for line in out.splitlines() if line.startswith("---")]
    assert heads == [f"--- prompt {p}, sample {s}" for p in (1, 2) for s in (1, 2, 3)]
    code, as_json, _ = h2h("generate", run, *request, "--json")
    content = json.loads(as_json)
    assert (content["strategy"], content["p"], content["seed"]) == ("top-p", 0.7, 0)
    assert [(row["prompt"], row["sample"]) for row in content["continuations"]] == [
        (prompt, sample) for prompt in ("the people", "our nation") for sample in range(3)
    ]
    output = [line for line in out.splitlines() if line and not line.startswith("---")]
    assert output == [row["prompt"] + row["text"] for row in content["continuations"]]


def test_a_text_longer_than_the_context_is_noted_on_stderr(h2h: Any, run: Path) -> None:  # noqa: F811
    code, out, err = h2h("generate", run, "the people", "--max-new-tokens", "20")
    assert code == 0
    assert "h2h: note: the text is longer than the model's context of 8 tokens" in " ".join(err.split())
    assert "note" not in out


def test_it_stops_at_stop_texts(h2h: Any, run: Path) -> None:  # noqa: F811
    code, out, _ = h2h("generate", run, "the people", "--strategy", "greedy", "--stop", "the peace", "--json")
    assert code == 0
    (row,) = json.loads(out)["continuations"]
    assert (row["text"], row["finish_reason"]) == (" will defend ", "string")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["x", "--strategy", "top-p", "--p", "1.5"], "p must be a probability in (0, 1], got 1.5"),
        (["x", "--strategy", "top-p", "--p", "0"], "in (0, 1], got 0.0"),
        (["x", "--strategy", "top-k", "--k", "0"], "k must be an integer of at least 1, got 0"),
        (["x", "--temperature", "-1"], "temperature must be at least 0 (0 is greedy), got -1.0"),
        (["x", "--strategy", "top-pp"], "no strategy named 'top-pp'; did you mean 'top-p'?"),
        (["x", "--strategy", "greedy", "--p", "0.5"], "greedy: no option 'p'"),
        ([""], "the prompt is empty and the model has no start token: give at least one word"),
        (["x", "--chat"], "chat requires a pretrained model with a chat template"),
    ],
)
def test_wrong_requests_end_with_2_and_plain_words(asked: list[str], said: str, h2h: Any, run: Path) -> None:  # noqa: F811
    code, out, err = h2h("generate", run, *asked)
    assert (code, out) == (2, "")
    assert said in " ".join(err.split())


def test_what_is_no_model_ends_with_2(h2h: Any, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "weights.bin").write_bytes(b"\x80\x04.")
    for where, output in (
        (tmp_path / "weights.bin", "is a pickle file, which can execute code when loaded"),
        ("no-such-model", "no such folder, file or installed package"),
        (os.devnull, "no such folder, file or installed package"),
    ):
        code, _, err = h2h("generate", where, "hello")
        assert code == 2
        assert output in " ".join(err.split())
