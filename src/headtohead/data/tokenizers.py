"""Tokens: words, characters, bytes, BPE trained on the corpus, or a tokenizer.json that is there already.

All are built with the `tokenizers` library, so that tokenizer.json alone reproduces them. A kind is one function; its
keyword-only arguments are its options. `<pad>`, `<unk>`, `<s>` and `</s>` are entries of the vocabulary and nothing
more: they are not looked for in texts, so that a text which spells one cannot pass for it.
"""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Protocol, get_type_hints, runtime_checkable

from pydantic import Field, TypeAdapter, ValidationError
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from headtohead.atomic_io import write_text
from headtohead.config.base import Choice
from headtohead.config.data import Data
from headtohead.data import treebank
from headtohead.data.file_errors import missing, refusal
from headtohead.data.splits import Corpus
from headtohead.errors import CorpusError, Fault, nearest

FILE = "tokenizer.json"
ROWS_AT_ONCE = 2048
PAD, UNKNOWN, START, STOP = "<pad>", "<unk>", "<s>", "</s>"
# Names that other makers gave to the same four; the first that a vocabulary has is taken.
NAMES = {
    "pad": (PAD, "[PAD]", "<|padding|>", "<|endoftext|>"),
    "unknown": (UNKNOWN, "[UNK]", "<UNK>"),
    "start": (START, "[CLS]", "<bos>", "<|begin_of_text|>", "<|endoftext|>"),
    "stop": (STOP, "[SEP]", "<eos>", "<|end_of_text|>", "<|endoftext|>"),
}
_EVERY_CHARACTER = "(?m)."  # Oniguruma's m: a period is a line end too

Count = Annotated[int, Field(ge=1)]
BpeSize = Annotated[int, Field(ge=256 + len(NAMES))]


@runtime_checkable
class Tokens(Protocol):
    """What everybody needs of a tokenizer; a pretrained model's has it too."""

    kind: str
    vocab_size: int
    pad_id: int | None
    unknown_id: int | None
    start_id: int | None
    stop_id: int | None

    def encode(self, text: str) -> list[int]: ...

    def encode_rows(self, rows: Sequence[str]) -> list[list[int]]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def token(self, id: int) -> str: ...


class Tokenizer:
    """Text to numbers and back. A thin wrapper round the tokenizer of the `tokenizers` library."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.vocab_size: int = backend.get_vocab_size()
        last = max(backend.get_vocab().values(), default=-1)
        if last >= self.vocab_size:  # the library would count up to it
            raise ValueError(f"its {self.vocab_size} tokens are numbered up to {last}, and not one after the other")
        self.kind = _kind(json.loads(backend.to_str()))
        self.pad_id, self.unknown_id, self.start_id, self.stop_id = (self._find(names) for names in NAMES.values())

    def _find(self, names: Iterable[str]) -> int | None:
        ids = (self.backend.token_to_id(name) for name in names)
        return next((one for one in ids if one is not None), None)

    def encode(self, text: str) -> list[int]:
        with panics_in_words():
            ids: list[int] = self.backend.encode(text, add_special_tokens=False).ids
        return ids

    def encode_rows(self, rows: Iterable[str]) -> list[list[int]]:
        # So many at a time: what the library returns takes many times the memory of the numbers.
        found: list[list[int]] = []
        every = iter(rows)
        with panics_in_words():
            while some := list(islice(every, ROWS_AT_ONCE)):
                found += [one.ids for one in self.backend.encode_batch_fast(some, add_special_tokens=False)]
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """Readable text; padding, start and stop are left out."""
        hidden = {self.pad_id, self.start_id, self.stop_id}
        with panics_in_words():
            text: str = self.backend.decode([i for i in ids if i not in hidden], skip_special_tokens=False)
        return text

    def token(self, id: int) -> str:
        """The entry of the vocabulary, as it stands there."""
        token = self.backend.id_to_token(id)
        if token is None:
            raise IndexError(f"no token {id} in a vocabulary of {self.vocab_size}")
        return str(token)

    def save(self, folder: Path | str) -> Path:
        path = Path(folder) / FILE
        write_text(path, self.backend.to_str(pretty=True) + "\n")
        return path

    @classmethod
    def load(cls, path: Path | str) -> Tokenizer:
        """From tokenizer.json, or the folder that holds it."""
        path = Path(path)
        path = path / FILE if path.is_dir() else path
        if not path.is_file():
            raise missing(path)
        try:
            with panics_in_words():
                return cls(Backend.from_str(path.read_text(encoding="utf-8")))
        except UnicodeDecodeError as error:
            raise refusal(path, [Fault(f"byte {error.start}", "is not UTF-8")]) from None
        except Exception as error:  # noqa: BLE001  the library raises plain Exception for a file that it cannot read
            message = f"is no tokenizer of the tokenizers library: {error}"
            raise refusal(path, [Fault("file", message)]) from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self.backend.to_str() == other.backend.to_str()

    def __hash__(self) -> int:
        return hash(self.backend.to_str())


@contextmanager
def panics_in_words() -> Iterator[None]:
    """The library ends in a panic over some tokenizers that it has read itself: no Exception to Python."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ == "PanicException":
            raise CorpusError(f"the tokenizer cannot be used: the tokenizers library fails with {error}") from None
        if type(error) is Exception:  # its word for everything else
            raise CorpusError(f"the tokenizer cannot be used: {error}") from None
        raise


def train_tokenizer(data: Data, corpus: Corpus, *, base: Path = Path()) -> Tokenizer:
    """The tokenizer that `data` asks for, learned from what the corpus allows. A relative path is taken from `base`."""
    if faults := check_tokens(data.tokens):
        raise refusal("data.tokens", faults)
    options = dict(data.tokens.options)
    language = corpus.task == "language-model"
    if data.tokens.kind == "file":
        options["path"] = str(base / Path(options["path"]).expanduser())
    elif language and data.rows == "sentences":
        options["ends"] = True
    rows: Iterable[str] = corpus.vocabulary_rows
    if language and data.rows == "stream" and data.tokens.kind != "words":
        # What stands between two rows of a stream is text as well.
        rows = (row + corpus.train.joint for row in rows)
    return Tokenizer(KINDS[data.tokens.kind](rows, **options))


def words(
    rows: Iterable[str], *, min_count: Count = 1, size: Count | None = None, lowercase: bool = False, ends: bool = False
) -> Backend:
    """Words after the Penn Treebank; the most frequent come first, equal ones in the order of the alphabet."""
    normalizer, splitter = treebank.normalizer(lowercase=lowercase), pre_tokenizers.WhitespaceSplit()
    backend = Backend(models.WordLevel({UNKNOWN: 0}, unk_token=UNKNOWN))
    backend.normalizer, backend.pre_tokenizer = normalizer, splitter
    # The library counts on all cores, and ranks words as we do: by number, then by the alphabet.
    trainer = trainers.WordLevelTrainer(vocab_size=2**31, min_frequency=min_count, show_progress=False)
    backend.train_from_iterator(rows, trainer)
    numbers = backend.get_vocab()
    ranked = sorted(numbers, key=numbers.__getitem__)
    backend.model = _listed(ranked, _specials(unknown=True, ends=ends), size)
    backend.decoder = treebank.decoder()
    return backend


def characters(rows: Iterable[str], *, lowercase: bool = False, ends: bool = False) -> Backend:
    """Every character a token, line ends among them."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts.update(row.lower() if lowercase else row)
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    backend = Backend(_listed(ranked, _specials(unknown=True, ends=ends), None))
    if lowercase:
        backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(_EVERY_CHARACTER), "isolated")
    backend.decoder = decoders.Fuse()
    return backend


def bytes_(rows: Iterable[str], *, ends: bool = False) -> Backend:
    """The 256 bytes of UTF-8: nothing is unknown."""
    vocabulary = _specials(unknown=False, ends=ends) + sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({token: i for i, token in enumerate(vocabulary)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def bpe(rows: Iterable[str], *, size: BpeSize = 2000, ends: bool = False) -> Backend:
    """Byte pairs merged by how often they occur, after Sennrich et al. 2016, arXiv:1508.07909, on bytes as in GPT-2."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    specials = _specials(unknown=False, ends=ends)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(rows, trainer)
    learned = json.loads(backend.to_str())["model"]
    # Built anew, because training registers the special tokens as text to be looked for.
    built = Backend(models.BPE(learned["vocab"], [tuple(merge) for merge in learned["merges"]]))
    built.pre_tokenizer = backend.pre_tokenizer
    built.decoder = decoders.ByteLevel()
    return built


def file(rows: Iterable[str], *, path: str) -> Backend:
    """A tokenizer.json that is there already; nothing is learned."""
    return Tokenizer.load(path).backend


KINDS: dict[str, Callable[..., Backend]] = {
    "words": words,
    "characters": characters,
    "bytes": bytes_,
    "bpe": bpe,
    "file": file,
}


def check_tokens(choice: Choice) -> list[Fault]:
    """What is wrong with data.tokens: kind and options are held against the functions above."""
    place = "data.tokens"
    if choice.kind not in KINDS:
        return [Fault(place, f"no tokens named {choice.kind!r}", tuple(KINDS), nearest(choice.kind, KINDS))]
    function = KINDS[choice.kind]
    known = {name: p for name, p in inspect.signature(function).parameters.items() if p.kind is p.KEYWORD_ONLY}
    hints = get_type_hints(function, include_extras=True)
    faults = []
    for name, value in choice.options.items():
        if name not in known:
            message = f"unknown option of {choice.kind}"
            faults.append(Fault(f"{place}.{name}", message, tuple(known), nearest(name, known)))
        elif wrong := _wrong(hints[name], value):
            faults.append(Fault(f"{place}.{name}", wrong))
    required = (name for name, parameter in known.items() if parameter.default is parameter.empty)
    absent = [name for name in required if name not in choice.options]
    return faults + [Fault(f"{place}.{name}", f"is missing: {choice.kind} needs it") for name in absent]


_EXPECTED = {"int_type": "a whole number", "bool_type": "true or false", "string_type": "text"}


def _wrong(hint: Any, value: object) -> str | None:
    try:
        TypeAdapter(hint).validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "greater_than_equal":
            return f"must be at least {first['ctx']['ge']}, not {value!r}"
        return f"must be {_EXPECTED.get(first['type'], first['msg'])}, not {value!r}"
    return None


def _specials(*, unknown: bool, ends: bool) -> list[str]:
    return [PAD, *([UNKNOWN] if unknown else []), *([START, STOP] if ends else [])]


def _listed(ranked: Sequence[str], specials: list[str], size: int | None) -> models.WordLevel:
    """A vocabulary of whole tokens, the most frequent first. `size` counts the special ones too."""
    room = len(ranked) if size is None else max(0, size - len(specials))
    vocabulary = {token: i for i, token in enumerate(specials + list(ranked[:room]))}
    return models.WordLevel(vocabulary, unk_token=UNKNOWN)


def _kind(saved: dict[str, Any]) -> str:
    """Which of the kinds above made this tokenizer; `file` when none did."""
    model, cut = saved["model"], saved["pre_tokenizer"] or {}
    match model["type"], cut.get("type"):
        case "WordLevel", "WhitespaceSplit" if _is_treebank(saved["normalizer"]):
            return "words"
        case "WordLevel", "Split" if cut["pattern"] == {"Regex": _EVERY_CHARACTER}:
            return "characters"
        case "BPE", "ByteLevel" if not cut["use_regex"] and not model["merges"]:
            return "bytes"
        case "BPE", "ByteLevel" if not saved["added_tokens"]:
            return "bpe"
    return "file"


def _is_treebank(normalizer: dict[str, Any] | None) -> bool:
    steps = (normalizer or {}).get("normalizers", [])
    rules = [(step["pattern"]["Regex"], step["content"]) for step in steps if step["type"] == "Replace"]
    return rules == list(treebank.TREEBANK)
