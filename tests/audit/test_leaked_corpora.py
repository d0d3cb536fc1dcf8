"""Many kinds of data leaks are reported, and clean corpora pass."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from headtohead.experiment.loading import build_experiment
from headtohead.experiment.schemas import CorpusFile
from headtohead.runner.corpus_description import describe_corpus

Rows = list[str]
VOCABULARY = ["".join(random.Random(i).choices("abcdefghilmnoprstuvy", k=2 + i % 7)) for i in range(1500)]


def make_lines(seed: int, count: int, low: int = 8, high: int = 18) -> Rows:
    """Return lines with Zipf-distributed words, as in natural text."""
    draw = random.Random(seed)
    weights = [1 / (rank + 3) for rank in range(len(VOCABULARY))]
    return [" ".join(draw.choices(VOCABULARY, weights, k=draw.randint(low, high))) for _ in range(count)]


TRAIN, VALIDATION, TEST = make_lines(1, 400), make_lines(2, 60), make_lines(3, 80)


def change_one_word(lines: Rows, seed: int = 0) -> Rows:
    draw, changed = random.Random(seed), []
    for line in lines:
        words = line.split()
        words[draw.randrange(len(words))] = "replaced"
        changed.append(" ".join(words))
    return changed


def drop_one_word(lines: Rows) -> Rows:
    draw, shorter = random.Random(0), []
    for line in lines:
        words = line.split()
        del words[draw.randrange(len(words))]
        shorter.append(" ".join(words))
    return shorter


def misspell(lines: Rows, share: float) -> Rows:
    """Swap two letters in a fraction of the words."""
    draw, changed = random.Random(0), []
    for line in lines:
        words = [word[1] + word[0] + word[2:] if draw.random() < share else word for word in line.split()]
        changed.append(" ".join(words))
    return changed


def replace_words(lines: Rows, share: float) -> Rows:
    draw = random.Random(0)
    return [" ".join(draw.choice(VOCABULARY) if draw.random() < share else word for word in x.split()) for x in lines]


def split_in_two(lines: Rows) -> Rows:
    halves = [half for line in lines for half in (" ".join(line.split()[:7]), " ".join(line.split()[7:])) if half]
    random.Random(0).shuffle(halves)
    return halves


def cut_windows(lines: Rows, width: int = 12, stride: int = 5) -> Rows:
    words = " ".join(lines).split()
    windows = [" ".join(words[start : start + width]) for start in range(0, len(words), stride)]
    random.Random(0).shuffle(windows)
    return windows


def shuffled(lines: Rows) -> Rows:
    return random.Random(5).sample(lines, len(lines))


def shuffle_words(lines: Rows) -> Rows:
    draw = random.Random(0)
    return [" ".join(draw.sample(words, len(words))) for words in map(str.split, lines)]


def make_chinese(seed: int, count: int) -> Rows:
    """Return lines in a script without spaces between words."""
    draw = random.Random(seed)
    return ["".join(chr(draw.randrange(0x4E00, 0x9000)) for _ in range(20)) for _ in range(count)]


def share_short_runs(lines: Rows) -> Rows:
    """Return lines that contain every 6-gram of characters of the given lines, as large texts do, but no longer
    n-grams.
    """
    others = iter(make_chinese(9, 30 * len(lines)))
    return [f"{next(others)}{line[i : i + 6]}{next(others)}" for line in lines for i in range(15)]


def write_code(seed: int, count: int) -> Rows:
    """Return lines generated from one template."""
    draw = random.Random(seed)
    names = [
        f"{verb}_{noun}" for verb in "get set read write find load".split() for noun in "user item file row".split()
    ]
    template = "def {}(self, {}): return self.{}({}) if {} else {}[{}]"
    values = [[*(draw.choice(names) for _ in range(6)), draw.randint(0, 99)] for _ in range(count)]
    return [template.format(a, b, c, d, e, f, number) for a, b, c, d, e, f, number in values]


def add_phrases(lines: Rows) -> Rows:
    """Insert a short common line after each line."""
    return [row for i, line in enumerate(lines) for row in (line, ("thank you very much .", "i see .", "yes")[i % 3])]


def describe(folder: Path, splits: dict[str, Rows], **tables: Any) -> CorpusFile:
    folder.mkdir(exist_ok=True)
    for name, rows in splits.items():
        (folder / f"{name}.txt").write_text("\n".join(rows) + "\n")
    raw: dict[str, Any] = {
        "question": "Does it help?",
        "task": "language-model",
        "model": {"width": 8, "layers": 1, "heads": 2, "context": 16},
        "variants": {"alibi": {"model": {"position": "alibi"}}},
        **tables,
        "data": {"source": str(folder), **tables.get("data", {})},
    }
    return describe_corpus(build_experiment(raw, "leak"))


def list_failed(corpus: CorpusFile, *, only_blocking: bool = False) -> list[str]:
    """Return the failed checks on other splits."""
    return [
        check.name
        for check in corpus.audits
        if check.passed is False
        and (" of test" in check.name or "of validation" in check.name)
        and (check.is_blocking or not only_blocking)
    ]


LEAKS: dict[str, Rows] = {
    "verbatim": TRAIN + shuffled(TEST),
    "case and punctuation": TRAIN + [line.upper() + "!" for line in TEST],
    "one word changed": TRAIN + shuffled(change_one_word(TEST)),
    "two words changed": TRAIN + change_one_word(change_one_word(TEST, 1), 2),
    "one word dropped": TRAIN + drop_one_word(TEST),
    "contained in longer lines": TRAIN + [f"{a} {b} {a}" for a, b in zip(TRAIN, TEST, strict=False)],
    "joined": TRAIN + [f"{a} {b}" for a, b in zip(TEST[::2], TEST[1::2], strict=True)],
    "split": TRAIN + split_in_two(TEST),
    "sliding windows": TRAIN + cut_windows(TEST),
    "one long line": [*TRAIN, " ".join(TEST)],
    "wrapped at other places": TRAIN + cut_windows(TEST, 10, 10)[::-1],
    "prefixed with numbers": TRAIN + [f"{i}. {line}" for i, line in enumerate(TEST)],
    "words shuffled": TRAIN + shuffle_words(TEST),
    "words reversed": TRAIN + [" ".join(line.split()[::-1]) for line in TEST],
    "words sorted, one changed": TRAIN + [" ".join(sorted(line.split())) for line in change_one_word(TEST)],
    "words shuffled, one dropped": TRAIN + shuffle_words(drop_one_word(TEST)),
    "half of the words misspelled": TRAIN + misspell(TEST, 0.5),
    "40 % of the words replaced": TRAIN + replace_words(TEST, 0.4),
    "half of the lines": TRAIN + change_one_word(TEST[::2]),
    "a third of the lines": TRAIN + TEST[::3],
    "copied ten times": TRAIN + TEST * 10,
}
HONEST: dict[str, tuple[Rows, Rows]] = {
    "other lines": (TRAIN, TEST),
    "short lines": (make_lines(4, 400, 2, 5), make_lines(5, 80, 2, 5)),
    "paragraphs": (make_lines(6, 60, 80, 120), make_lines(7, 20, 80, 120)),
    "one shared line": (TRAIN + TEST[:1], TEST),
    "short runs in a script without spaces": (share_short_runs(make_chinese(3, 20)), make_chinese(3, 20)),
    "generated code": (write_code(1, 1200), write_code(2, 80)),
    "stock phrases": (add_phrases(TRAIN), add_phrases(TEST)),
    "a shared heading": ([f"chapter of the book {line}" for line in TRAIN], [f"chapter of the book {x}" for x in TEST]),
}


@pytest.mark.parametrize("form", LEAKS)
def test_leak_is_reported_in_a_stream_and_withholds_the_verdict(form: str, tmp_path: Path) -> None:
    corpus = describe(tmp_path / "text", {"train": LEAKS[form], "validation": VALIDATION, "test": TEST})
    assert list_failed(corpus, only_blocking=True) == ["lines of test in train"]


@pytest.mark.parametrize("form", LEAKS)
def test_leak_is_reported_in_rows_and_only_unseen_rows_are_judged(form: str, tmp_path: Path) -> None:
    splits = {"train": LEAKS[form], "validation": VALIDATION, "test": TEST}
    corpus = describe(tmp_path / "text", splits, data={"rows": "sentences"})
    assert list_failed(corpus) == ["lines of test in train"]
    is_partial, is_found_completely = "of the lines" in form, "of the words" not in form
    leaked = {"half of the lines": range(0, 80, 2), "a third of the lines": range(0, 80, 3)}.get(form, range(80))
    assert len(set(corpus.unseen["test"]) & set(leaked)) <= (0.1 if is_found_completely else 0.8) * len(leaked)
    assert bool(list_failed(corpus, only_blocking=True)) is not is_partial


@pytest.mark.parametrize("form", HONEST)
@pytest.mark.parametrize("rows", ["stream", "sentences"])
def test_correct_corpus_is_not_accused(form: str, rows: str, tmp_path: Path) -> None:
    train, test = HONEST[form]
    corpus = describe(tmp_path / "text", {"train": train, "validation": VALIDATION, "test": test}, data={"rows": rows})
    num_shared = {"one shared line": 1, "stock phrases": len(test) // 2}.get(form, 0)
    assert list_failed(corpus, only_blocking=True) == []
    assert ("lines of test in train" in list_failed(corpus)) is (num_shared > 0)
    if rows == "sentences":
        assert len(corpus.unseen["test"]) == len(test) - num_shared


def test_validation_equal_to_test_is_reported_and_blocks_if_weights_are_chosen_on_it(tmp_path: Path) -> None:
    splits = {"train": TRAIN, "validation": shuffled(TEST), "test": TEST}
    assert list_failed(describe(tmp_path / "text", splits)) == ["lines of test in validation"]
    chosen = describe(tmp_path / "text", splits, training={"load_best_model_at_end": True})
    assert list_failed(chosen, only_blocking=True) == ["lines of test in validation"]


@pytest.mark.parametrize("repeats", [TEST[:8] * 10, [*TEST[:20], *change_one_word(TEST[:20] * 3)]])
def test_repeated_test_rows_are_grouped_and_block_a_stream(repeats: Rows, tmp_path: Path) -> None:
    splits = {"train": TRAIN, "validation": VALIDATION, "test": repeats}
    rows = describe(tmp_path / "text", splits, data={"rows": "sentences"})
    assert list_failed(rows) == ["repeated lines of test"]
    assert list_failed(rows, only_blocking=True) == []
    assert len(set(rows.groups["test"])) <= 22
    stream = describe(tmp_path / "text", splits)
    assert list_failed(stream, only_blocking=True) == ["repeated lines of test"]


def test_generated_corpus_may_overlap_if_the_file_allows_it(tmp_path: Path) -> None:
    splits = {"train": LEAKS["one word changed"], "validation": VALIDATION, "test": TEST}
    corpus = describe(tmp_path / "text", splits, data={"allow_overlap": True})
    assert list_failed(corpus) == ["lines of test in train"]
    assert list_failed(corpus, only_blocking=True) == []


def test_corpus_of_a_variant_is_checked_too(tmp_path: Path) -> None:
    leaked = tmp_path / "leaked"
    describe(leaked, {"train": LEAKS["joined"], "validation": VALIDATION, "test": TEST})
    corpus = describe(
        tmp_path / "text",
        {"train": TRAIN, "validation": VALIDATION, "test": TEST},
        variants={"more": {"data": {"source": str(leaked)}}},
    )
    assert list_failed(corpus) == []
    checks = [check.name for check in corpus.variant_audits["more"] if check.passed is False and check.is_blocking]
    assert checks == ["lines of test in train"]


def test_windows_of_text_without_spaces_are_reported(tmp_path: Path) -> None:
    draw = random.Random(0)
    sequence = "".join(draw.choices("ACGT", k=6000))
    windows = shuffled([sequence[start : start + 80] for start in range(0, 5900, 20)])
    others = ["".join(draw.choices("ACGT", k=80)) for _ in range(60)]
    settings = {"rows": "sentences", "tokenizer": "characters"}
    splits = {"train": windows[:220], "validation": others[:20], "test": windows[220:]}
    assert "lines of test in train" in list_failed(describe(tmp_path / "text", splits, data=settings))
    honest = describe(tmp_path / "honest", {**splits, "test": others[20:]}, data=settings)
    assert list_failed(honest) == []


@pytest.mark.parametrize(("is_shared", "name"), [(True, "article{}"), (False, "article{}"), (None, "{}")])
def test_documents_with_rows_in_train_and_test_are_reported(is_shared: bool | None, name: str, tmp_path: Path) -> None:
    """Documents numbered from 0 in each file share names but are different documents."""
    folder = tmp_path / "text"
    folder.mkdir()
    for split, rows, first in (("train", TRAIN, 0), ("validation", VALIDATION, 500), ("test", TEST, 600)):
        ids = (
            [first + index for index in range(len(rows))] if is_shared is False else [i % 20 for i in range(len(rows))]
        )
        lines = ["text\tdocument", *(f"{row}\t{name.format(i)}" for row, i in zip(rows, ids, strict=True))]
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    corpus = describe(folder, {})
    assert list_failed(corpus) == (["documents of test in train"] if is_shared else [])


@pytest.mark.parametrize(
    ("fitted_on", "is_named"), [(TRAIN, False), (TRAIN + TEST, True), (make_lines(77, 800), False)]
)
def test_tokenizer_file_that_was_fitted_on_test_is_reported(fitted_on: Rows, is_named: bool, tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.train_from_iterator(fitted_on, tokenizers.trainers.BpeTrainer(vocab_size=2500, show_progress=False))
    backend.save(str(tmp_path / "tokenizer.json"))
    splits = {"train": TRAIN, "validation": VALIDATION, "test": TEST}
    choice = {"kind": "file", "path": str(tmp_path / "tokenizer.json")}
    corpus = describe(tmp_path / "text", splits, data={"tokenizer": choice})
    (check,) = [check for check in corpus.audits if check.name == "vocabulary"]
    assert check.passed is not is_named, str(check)
    assert not is_named or "was fitted on test text" in check.interpretation


def test_held_out_split_that_was_cut_from_train_is_reported(tmp_path: Path) -> None:
    corpus = describe(tmp_path / "text", {"train": TRAIN, "validation": VALIDATION})
    (check,) = [check for check in corpus.audits if check.name == "held-out splits"]
    assert check.passed is False
    assert f"{corpus.splits['test'].rows} of 400 rows of train were held out as test" in check.observation


REAL: dict[str, tuple[str, str, str]] = {
    "shakespeare": ("shakespeare-words", "train.txt", "test.txt"),
    "news": ("1b-benchmark", "1b_benchmark.test.tokens", "1b_benchmark.dev.tokens"),
    "sentiment": ("sst2", "train.tsv", "test.tsv"),
    "dialogues": ("summaries", "dialogsum/train.jsonl", "dialogsum/test.jsonl"),
    "abstracts": ("summaries", "scitldr/train.jsonl", "scitldr/test.jsonl"),
    "speeches": ("speeches", "speechesdataset/train_LM.txt", "speechesdataset/test_LM_hbush.txt"),
}


def read_rows(path: Path) -> Rows:
    lines = [line for line in path.read_text().split("\n") if line.strip()]
    if path.suffix == ".jsonl":
        return [json.loads(line)["document"].replace("\n", " ") for line in lines]
    return [line.rpartition("\t")[2] for line in lines]


@pytest.mark.parametrize("name", REAL)
def test_real_corpus_is_not_accused(name: str, shared: Callable[[str], Path], tmp_path: Path) -> None:
    folder, train, test = REAL[name]
    splits = {"train": read_rows(shared(folder) / train), "test": read_rows(shared(folder) / test)}
    corpus = describe(tmp_path / "text", splits, data={"validation_fraction": 0})
    assert list_failed(corpus, only_blocking=True) == []
