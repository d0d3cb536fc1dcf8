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
from headtohead.config.base import ComponentConfig
from headtohead.config.data import DataConfig
from headtohead.data import treebank
from headtohead.data.file_errors import build_file_error, build_missing_path_error
from headtohead.data.splits import Corpus
from headtohead.errors import DataError, ValidationIssue, suggest

TOKENIZER_FILE = "tokenizer.json"
ENCODE_CHUNK_ROWS = 2048
PAD_TOKEN, UNK_TOKEN, BOS_TOKEN, EOS_TOKEN = "<pad>", "<unk>", "<s>", "</s>"
# Names that other makers gave to the same four; the first that a vocabulary has is taken.
SPECIAL_TOKEN_ALIASES = {
    "pad": (PAD_TOKEN, "[PAD]", "<|padding|>", "<|endoftext|>"),
    "unknown": (UNK_TOKEN, "[UNK]", "<UNK>"),
    "start": (BOS_TOKEN, "[CLS]", "<bos>", "<|begin_of_text|>", "<|endoftext|>"),
    "stop": (EOS_TOKEN, "[SEP]", "<eos>", "<|end_of_text|>", "<|endoftext|>"),
}
MASK_TOKEN_ALIASES = ("<mask>", "[MASK]")
_ANY_CHARACTER_PATTERN = "(?m)."  # Oniguruma's m: a period is a line end too

PositiveCount = Annotated[int, Field(ge=1)]
BpeVocabSize = Annotated[int, Field(ge=256 + len(SPECIAL_TOKEN_ALIASES))]


@runtime_checkable
class TokenizerProtocol(Protocol):
    """What everybody needs of a tokenizer; a pretrained model's has it too."""

    kind: str
    vocab_size: int
    pad_id: int | None
    unk_id: int | None
    bos_id: int | None
    eos_id: int | None

    def encode(self, text: str) -> list[int]: ...

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def id_to_token(self, id: int) -> str: ...


class CorpusTokenizer:
    """Text to numbers and back. A thin wrapper round the tokenizer of the `tokenizers` library."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.vocab_size: int = backend.get_vocab_size()
        last = max(backend.get_vocab().values(), default=-1)
        if last >= self.vocab_size:  # the library would count up to it
            raise ValueError(f"its {self.vocab_size} tokens are numbered up to {last}, and not one after the other")
        self.kind = _infer_kind(json.loads(backend.to_str()))
        self.pad_id, self.unk_id, self.bos_id, self.eos_id = (
            self._find_token_id(names) for names in SPECIAL_TOKEN_ALIASES.values()
        )
        self.mask_id = self._find_token_id(MASK_TOKEN_ALIASES)

    def _find_token_id(self, names: Iterable[str]) -> int | None:
        ids = (self.backend.token_to_id(name) for name in names)
        return next((one for one in ids if one is not None), None)

    def encode(self, text: str) -> list[int]:
        with translate_backend_errors():
            ids: list[int] = self.backend.encode(text, add_special_tokens=False).ids
        return ids

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        # So many at a time: what the library returns takes many times the memory of the numbers.
        found: list[list[int]] = []
        every = iter(texts)
        with translate_backend_errors():
            while some := list(islice(every, ENCODE_CHUNK_ROWS)):
                found += [one.ids for one in self.backend.encode_batch_fast(some, add_special_tokens=False)]
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """Readable text; padding, start and stop are left out."""
        hidden = {self.pad_id, self.bos_id, self.eos_id}
        with translate_backend_errors():
            text: str = self.backend.decode([i for i in ids if i not in hidden], skip_special_tokens=False)
        return text

    def id_to_token(self, id: int) -> str:
        """The entry of the vocabulary, as it stands there."""
        token = self.backend.id_to_token(id)
        if token is None:
            raise IndexError(f"no token {id} in a vocabulary of {self.vocab_size}")
        return str(token)

    def save(self, folder: Path | str) -> Path:
        path = Path(folder) / TOKENIZER_FILE
        write_text(path, self.backend.to_str(pretty=True) + "\n")
        return path

    @classmethod
    def load(cls, path: Path | str) -> CorpusTokenizer:
        """From tokenizer.json, or the folder that holds it."""
        path = Path(path)
        path = path / TOKENIZER_FILE if path.is_dir() else path
        if not path.is_file():
            raise build_missing_path_error(path)
        try:
            with translate_backend_errors():
                return cls(Backend.from_str(path.read_text(encoding="utf-8")))
        except UnicodeDecodeError as error:
            raise build_file_error(path, [ValidationIssue(f"byte {error.start}", "is not UTF-8")]) from None
        except Exception as error:  # noqa: BLE001  the library raises plain Exception for a file that it cannot read
            message = f"is no tokenizer of the tokenizers library: {error}"
            raise build_file_error(path, [ValidationIssue("file", message)]) from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CorpusTokenizer) and self.backend.to_str() == other.backend.to_str()

    def __hash__(self) -> int:
        return hash(self.backend.to_str())


@contextmanager
def translate_backend_errors() -> Iterator[None]:
    """The library ends in a panic over some tokenizers that it has read itself: no Exception to Python."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ == "PanicException":
            raise DataError(f"the tokenizer cannot be used: the tokenizers library fails with {error}") from None
        if type(error) is Exception:  # its word for everything else
            raise DataError(f"the tokenizer cannot be used: {error}") from None
        raise


def train_tokenizer(data: DataConfig, corpus: Corpus, *, base_folder: Path = Path()) -> CorpusTokenizer:
    """The tokenizer that `data` asks for, learned from what the corpus allows. A relative path is taken from `base`."""
    if faults := check_tokenizer_choice(data.tokenizer):
        raise build_file_error("data.tokenizer", faults)
    options = dict(data.tokenizer.options)
    language = not corpus.has_labels
    if data.tokenizer.kind == "file":
        options["path"] = str(base_folder / Path(options["path"]).expanduser())
    elif language and data.rows == "sentences":
        options["add_bos_eos"] = True
    rows: Iterable[str] = corpus.vocabulary_rows
    if language and data.rows == "stream" and data.tokenizer.kind != "words":
        # What stands between two rows of a stream is text as well.
        rows = (row + corpus.train.separator for row in rows)
    return CorpusTokenizer(TOKENIZER_BUILDERS[data.tokenizer.kind](rows, **options))


def train_word_tokenizer(
    rows: Iterable[str],
    *,
    min_count: PositiveCount = 1,
    vocab_size: PositiveCount | None = None,
    lowercase: bool = False,
    add_bos_eos: bool = False,
    add_mask: bool = False,
) -> Backend:
    """Words after the Penn Treebank; the most frequent come first, equal ones in the order of the alphabet."""
    normalizer, splitter = treebank.build_normalizer(lowercase=lowercase), pre_tokenizers.WhitespaceSplit()
    backend = Backend(models.WordLevel({UNK_TOKEN: 0}, unk_token=UNK_TOKEN))
    backend.normalizer, backend.pre_tokenizer = normalizer, splitter
    # The library counts on all cores, and ranks words as we do: by number, then by the alphabet.
    trainer = trainers.WordLevelTrainer(vocab_size=2**31, min_frequency=min_count, show_progress=False)
    backend.train_from_iterator(rows, trainer)
    numbers = backend.get_vocab()
    ranked = sorted(numbers, key=numbers.__getitem__)
    backend.model = _build_word_level_model(
        ranked, _list_special_tokens(has_unk=True, add_bos_eos=add_bos_eos, add_mask=add_mask), vocab_size
    )
    backend.decoder = treebank.build_decoder()
    return backend


def train_character_tokenizer(
    rows: Iterable[str], *, lowercase: bool = False, add_bos_eos: bool = False, add_mask: bool = False
) -> Backend:
    """Every character a token, line ends among them."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts.update(row.lower() if lowercase else row)
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    backend = Backend(
        _build_word_level_model(
            ranked, _list_special_tokens(has_unk=True, add_bos_eos=add_bos_eos, add_mask=add_mask), None
        )
    )
    if lowercase:
        backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(_ANY_CHARACTER_PATTERN), "isolated")
    backend.decoder = decoders.Fuse()
    return backend


def build_byte_tokenizer(rows: Iterable[str], *, add_bos_eos: bool = False, add_mask: bool = False) -> Backend:
    """The 256 bytes of UTF-8: nothing is unknown."""
    vocabulary = _list_special_tokens(has_unk=False, add_bos_eos=add_bos_eos, add_mask=add_mask) + sorted(
        pre_tokenizers.ByteLevel.alphabet()
    )
    backend = Backend(models.BPE({token: i for i, token in enumerate(vocabulary)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def train_bpe_tokenizer(
    rows: Iterable[str], *, vocab_size: BpeVocabSize = 2000, add_bos_eos: bool = False, add_mask: bool = False
) -> Backend:
    """Byte pairs merged by how often they occur, after Sennrich et al. 2016, arXiv:1508.07909, on bytes as in GPT-2."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    specials = _list_special_tokens(has_unk=False, add_bos_eos=add_bos_eos, add_mask=add_mask)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(rows, trainer)
    learned = json.loads(backend.to_str())["model"]
    # Built anew, because training registers the special tokens as text to be looked for.
    built = Backend(models.BPE(learned["vocab"], [tuple(merge) for merge in learned["merges"]]))
    built.pre_tokenizer = backend.pre_tokenizer
    built.decoder = decoders.ByteLevel()
    return built


def load_tokenizer_file(rows: Iterable[str], *, path: str) -> Backend:
    """A tokenizer.json that is there already; nothing is learned."""
    return CorpusTokenizer.load(path).backend


TOKENIZER_BUILDERS: dict[str, Callable[..., Backend]] = {
    "words": train_word_tokenizer,
    "characters": train_character_tokenizer,
    "bytes": build_byte_tokenizer,
    "bpe": train_bpe_tokenizer,
    "file": load_tokenizer_file,
}


def check_tokenizer_choice(choice: ComponentConfig) -> list[ValidationIssue]:
    """What is wrong with data.tokenizer: kind and options are held against the functions above."""
    place = "data.tokenizer"
    if choice.kind not in TOKENIZER_BUILDERS:
        return [
            ValidationIssue(
                place,
                f"no tokens named {choice.kind!r}",
                tuple(TOKENIZER_BUILDERS),
                suggest(choice.kind, TOKENIZER_BUILDERS),
            )
        ]
    function = TOKENIZER_BUILDERS[choice.kind]
    known = {name: p for name, p in inspect.signature(function).parameters.items() if p.kind is p.KEYWORD_ONLY}
    hints = get_type_hints(function, include_extras=True)
    faults = []
    for name, value in choice.options.items():
        if name not in known:
            message = f"unknown option of {choice.kind}"
            faults.append(ValidationIssue(f"{place}.{name}", message, tuple(known), suggest(name, known)))
        elif wrong := _find_option_error(hints[name], value):
            faults.append(ValidationIssue(f"{place}.{name}", wrong))
    required = (name for name, parameter in known.items() if parameter.default is parameter.empty)
    absent = [name for name in required if name not in choice.options]
    return faults + [ValidationIssue(f"{place}.{name}", f"is missing: {choice.kind} needs it") for name in absent]


_TYPE_DESCRIPTIONS = {"int_type": "a whole number", "bool_type": "true or false", "string_type": "text"}


def _find_option_error(hint: Any, value: object) -> str | None:
    try:
        TypeAdapter(hint).validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "greater_than_equal":
            return f"must be at least {first['ctx']['ge']}, not {value!r}"
        return f"must be {_TYPE_DESCRIPTIONS.get(first['type'], first['msg'])}, not {value!r}"
    return None


def _list_special_tokens(*, has_unk: bool, add_bos_eos: bool, add_mask: bool) -> list[str]:
    optional = (
        (UNK_TOKEN, has_unk),
        (BOS_TOKEN, add_bos_eos),
        (EOS_TOKEN, add_bos_eos),
        (MASK_TOKEN_ALIASES[0], add_mask),
    )
    return [PAD_TOKEN, *(token for token, is_used in optional if is_used)]


def _build_word_level_model(
    ranked_tokens: Sequence[str], special_tokens: list[str], vocab_size: int | None
) -> models.WordLevel:
    """A vocabulary of whole tokens, the most frequent first. `size` counts the special ones too."""
    room = len(ranked_tokens) if vocab_size is None else max(0, vocab_size - len(special_tokens))
    vocabulary = {token: i for i, token in enumerate(special_tokens + list(ranked_tokens[:room]))}
    return models.WordLevel(vocabulary, unk_token=UNK_TOKEN)


def _infer_kind(tokenizer_json: dict[str, Any]) -> str:
    """Which of the kinds above made this tokenizer; `file` when none did."""
    model, cut = tokenizer_json["model"], tokenizer_json["pre_tokenizer"] or {}
    match model["type"], cut.get("type"):
        case "WordLevel", "WhitespaceSplit" if _is_treebank_normalizer(tokenizer_json["normalizer"]):
            return "words"
        case "WordLevel", "Split" if cut["pattern"] == {"Regex": _ANY_CHARACTER_PATTERN}:
            return "characters"
        case "BPE", "ByteLevel" if not cut["use_regex"] and not model["merges"]:
            return "bytes"
        case "BPE", "ByteLevel" if not tokenizer_json["added_tokens"]:
            return "bpe"
    return "file"


def _is_treebank_normalizer(normalizer: dict[str, Any] | None) -> bool:
    steps = (normalizer or {}).get("normalizers", [])
    rules = [(step["pattern"]["Regex"], step["content"]) for step in steps if step["type"] == "Replace"]
    return rules == list(treebank.TREEBANK_RULES)
