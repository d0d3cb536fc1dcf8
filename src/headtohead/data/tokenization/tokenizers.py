"""Corpus tokenizers: words, characters, bytes, BPE trained on the corpus, or an existing tokenizer.json.

All are built with the `tokenizers` library, so that tokenizer.json alone reproduces them. Each kind is one function
whose keyword-only arguments are its options. `<pad>`, `<unk>`, `<s>` and `</s>` are vocabulary entries that are never
matched in a text: a text that contains "<s>" is not encoded as the start token.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Protocol, runtime_checkable

from pydantic import Field
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from headtohead import safe_open
from headtohead.atomic_io import write_text
from headtohead.config.tables.data import DataConfig
from headtohead.config.validation.component_options import validate_component
from headtohead.data.file_errors import build_file_error, build_missing_path_error
from headtohead.data.splits import Corpus
from headtohead.data.text_store import iter_sampled_text
from headtohead.data.tokenization import tokenizer_guard, treebank
from headtohead.errors import DataError, ValidationIssue

TOKENIZER_FILE = "tokenizer.json"
ENCODE_CHUNK_ROWS = 2048
"""texts encoded at a time"""
MAX_BPE_TRAINING_BYTES = 2**28
"""size of the text that BPE is trained on, an even sample of longer texts: its memory grows with the number of words"""
PAD_TOKEN = "<pad>"
UNK_TOKEN = "<unk>"
BOS_TOKEN = "<s>"
EOS_TOKEN = "</s>"
# Names that other vocabularies use for these tokens; the first one found is used.
SPECIAL_TOKEN_ALIASES = {
    "pad": (PAD_TOKEN, "[PAD]", "<|padding|>", "<|endoftext|>"),
    "unknown": (UNK_TOKEN, "[UNK]", "<UNK>"),
    "start": (BOS_TOKEN, "[CLS]", "<bos>", "<|begin_of_text|>", "<|endoftext|>"),
    "stop": (EOS_TOKEN, "[SEP]", "<eos>", "<|end_of_text|>", "<|endoftext|>"),
}
MASK_TOKEN_ALIASES = ("<mask>", "[MASK]")

PositiveCount = Annotated[int, Field(ge=1)]
BpeVocabSize = Annotated[int, Field(ge=256 + len(SPECIAL_TOKEN_ALIASES))]


@runtime_checkable
class TokenizerProtocol(Protocol):
    """The interface of all tokenizers, including those of pretrained models."""

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
    """Converts text to token ids and back. A thin wrapper around `tokenizers.Tokenizer`."""

    def __init__(self, backend: Backend) -> None:
        """Wrap a tokenizer of the library and find its special tokens; raise ValueError if its token ids have gaps."""
        self.backend = backend
        self.guard: tokenizer_guard.TokenizerGuard | None = None
        self.vocab_size: int = backend.get_vocab_size()
        max_id = max(backend.get_vocab().values(), default=-1)
        if max_id >= self.vocab_size:  # the vocabulary size would not cover all ids
            raise ValueError(f"token ids must be consecutive: {self.vocab_size} tokens, but the largest id is {max_id}")
        self.kind = _infer_tokenizer_kind(json.loads(backend.to_str()))
        self.pad_id, self.unk_id, self.bos_id, self.eos_id = (
            self._find_token_id(aliases) for aliases in SPECIAL_TOKEN_ALIASES.values()
        )
        self.mask_id = self._find_token_id(MASK_TOKEN_ALIASES)

    def _find_token_id(self, aliases: Iterable[str]) -> int | None:
        """Return the id of the first alias of a special token that is in the vocabulary, or None."""
        alias_ids = (self.backend.token_to_id(alias) for alias in aliases)
        return next((token_id for token_id in alias_ids if token_id is not None), None)

    def drop_unused_bos(self) -> None:
        """Forget the start token unless the post-processor in tokenizer.json adds it.

        Imported models expect the special tokens that their tokenizer adds.
        """
        if self.bos_id not in self.backend.encode("").ids[:1]:
            self.bos_id = None

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without special tokens."""
        if self.guard is not None:
            self.guard.check_encoding([text])
        with translate_backend_errors():
            ids: list[int] = self.backend.encode(text, add_special_tokens=False).ids
        return ids

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """Return the token ids of each text, without special tokens."""
        # Encode in chunks: Encoding objects use far more memory than their ids.
        ids_by_text: list[list[int]] = []
        remaining_texts = iter(texts)
        with translate_backend_errors():
            while chunk := list(islice(remaining_texts, ENCODE_CHUNK_ROWS)):
                if self.guard is not None:
                    self.guard.check_encoding(chunk)
                ids_by_text += [
                    encoding.ids for encoding in self.backend.encode_batch_fast(chunk, add_special_tokens=False)
                ]
        return ids_by_text

    def decode(self, ids: Sequence[int]) -> str:
        """Return the decoded text, without padding, start and stop tokens."""
        hidden_ids = {self.pad_id, self.bos_id, self.eos_id}
        shown_ids = [token_id for token_id in ids if token_id not in hidden_ids]
        if self.guard is not None:
            self.guard.check_decoding(shown_ids)
        with translate_backend_errors():
            text: str = self.backend.decode(shown_ids, skip_special_tokens=False)
        return text

    def id_to_token(self, id: int) -> str:
        """Return the vocabulary entry for an id. Raise `IndexError` if there is none."""
        token = self.backend.id_to_token(id)
        if token is None:
            raise IndexError(f"no token {id} in a vocabulary of {self.vocab_size}")
        return str(token)

    def save(self, folder: Path | str) -> Path:
        """Write tokenizer.json into a folder and return its path."""
        path = Path(folder) / TOKENIZER_FILE
        write_text(path, self.backend.to_str(pretty=True) + "\n")
        return path

    @classmethod
    def load(cls, path: Path | str) -> CorpusTokenizer:
        """Load a tokenizer.json, given its path or folder. Raise `DataError` if it is missing or invalid."""
        path = Path(path)
        path = path / TOKENIZER_FILE if path.is_dir() else path
        if not path.is_file():
            raise build_missing_path_error(path)
        try:
            with translate_backend_errors():
                return cls(Backend.from_str(safe_open.read_file(path, follow_link=True).decode()))
        except UnicodeDecodeError as error:
            raise build_file_error(path, [ValidationIssue(f"byte {error.start}", "is not UTF-8")]) from None
        except Exception as error:  # noqa: BLE001  the library raises plain Exception for an invalid file
            message = f"is no tokenizer of the tokenizers library: {error}"
            raise build_file_error(path, [ValidationIssue("file", message)]) from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CorpusTokenizer) and self.backend.to_str() == other.backend.to_str()

    def __hash__(self) -> int:
        return hash(self.backend.to_str())


@contextmanager
def translate_backend_errors() -> Iterator[None]:
    """Turn errors of the library into `DataError` when a tokenizer is loaded, trained or used.

    Some tokenizers that the library loads make it panic when used; a panic is not an `Exception` in Python.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ == "PanicException":
            raise DataError(f"the tokenizer cannot be used: the tokenizers library fails with {error}") from None
        if type(error) is Exception:  # the library raises plain Exception for all other errors
            raise DataError(f"the tokenizer cannot be used: {error}") from None
        raise


def train_tokenizer(data: DataConfig, corpus: Corpus, *, base_folder: Path = Path()) -> CorpusTokenizer:
    """Return the tokenizer that `data` describes, trained on the vocabulary rows of the corpus.

    A relative tokenizer path starts at `base_folder`.
    """
    if issues := validate_component(data.tokenizer, TOKENIZER_BUILDERS, "tokenizer", "data.tokenizer"):
        raise build_file_error("data.tokenizer", issues)
    options = dict(data.tokenizer.options)
    is_language_model = not corpus.has_labels
    if data.tokenizer.kind == "file":
        options["path"] = str(base_folder / Path(options["path"]).expanduser())
    elif is_language_model and data.rows == "sentences":
        options["add_bos_eos"] = True
    rows: Iterable[str] = corpus.vocabulary_rows
    if data.tokenizer.kind == "bpe":
        rows = iter_sampled_text(corpus.vocabulary_rows, MAX_BPE_TRAINING_BYTES)
    if is_language_model and data.rows == "stream" and data.tokenizer.kind != "words":
        # The separators between the rows of a stream are text too.
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
    """Train a tokenizer of Penn Treebank words, ordered by decreasing frequency, then alphabetically."""
    backend = Backend(models.WordLevel({UNK_TOKEN: 0}, unk_token=UNK_TOKEN))
    backend.normalizer = treebank.build_normalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # The library counts on all cores and orders words by frequency, then alphabetically.
    trainer = trainers.WordLevelTrainer(vocab_size=2**31, min_frequency=min_count, show_progress=False)
    backend.train_from_iterator(rows, trainer)
    word_ranks = backend.get_vocab()
    ranked_words = sorted(word_ranks, key=word_ranks.__getitem__)
    backend.model = _build_word_level_model(
        ranked_words, _list_special_tokens(has_unk=True, add_bos_eos=add_bos_eos, add_mask=add_mask), vocab_size
    )
    backend.decoder = treebank.build_decoder()
    return backend


def train_character_tokenizer(
    rows: Iterable[str], *, lowercase: bool = False, add_bos_eos: bool = False, add_mask: bool = False
) -> Backend:
    """Build a tokenizer of single characters, including line breaks."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts.update(row.lower() if lowercase else row)
    ranked_characters = sorted(counts, key=lambda character: (-counts[character], character))
    backend = Backend(
        _build_word_level_model(
            ranked_characters, _list_special_tokens(has_unk=True, add_bos_eos=add_bos_eos, add_mask=add_mask), None
        )
    )
    if lowercase:
        backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(tokenizer_guard.ANY_CHARACTER_PATTERN), "isolated")
    backend.decoder = decoders.Fuse()
    return backend


def build_byte_tokenizer(rows: Iterable[str], *, add_bos_eos: bool = False, add_mask: bool = False) -> Backend:
    """Build a tokenizer of the 256 byte values, to which no text is unknown."""
    special_tokens = _list_special_tokens(has_unk=False, add_bos_eos=add_bos_eos, add_mask=add_mask)
    tokens = special_tokens + sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({token: token_id for token_id, token in enumerate(tokens)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def train_bpe_tokenizer(
    rows: Iterable[str], *, vocab_size: BpeVocabSize = 2000, add_bos_eos: bool = False, add_mask: bool = False
) -> Backend:
    """Train byte-level BPE as in GPT-2. Sennrich et al. 2016, arXiv:1508.07909."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special_tokens = _list_special_tokens(has_unk=False, add_bos_eos=add_bos_eos, add_mask=add_mask)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special_tokens, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(rows, trainer)
    trained_model = json.loads(backend.to_str())["model"]
    # Rebuilt, because training registers the special tokens as text to match.
    tokenizer = Backend(models.BPE(trained_model["vocab"], [tuple(merge) for merge in trained_model["merges"]]))
    tokenizer.pre_tokenizer = backend.pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def load_tokenizer_file(rows: Iterable[str], *, path: str) -> Backend:
    """Load an existing tokenizer.json; nothing is trained."""
    return CorpusTokenizer.load(path).backend


TOKENIZER_BUILDERS: dict[str, Callable[..., Backend]] = {
    "words": train_word_tokenizer,
    "characters": train_character_tokenizer,
    "bytes": build_byte_tokenizer,
    "bpe": train_bpe_tokenizer,
    "file": load_tokenizer_file,
}


def _list_special_tokens(*, has_unk: bool, add_bos_eos: bool, add_mask: bool) -> list[str]:
    """Return the special tokens in the vocabulary of a corpus tokenizer, padding first."""
    optional_tokens = (
        (UNK_TOKEN, has_unk),
        (BOS_TOKEN, add_bos_eos),
        (EOS_TOKEN, add_bos_eos),
        (MASK_TOKEN_ALIASES[0], add_mask),
    )
    return [PAD_TOKEN, *(token for token, is_used in optional_tokens if is_used)]


def _build_word_level_model(
    ranked_tokens: Sequence[str], special_tokens: list[str], vocab_size: int | None
) -> models.WordLevel:
    """Build the vocabulary of a word or character tokenizer: special tokens followed by the most frequent tokens.

    `ranked_tokens` is ordered by decreasing frequency. `vocab_size` includes the special tokens; None uses all tokens.
    """
    num_ranked = len(ranked_tokens) if vocab_size is None else max(0, vocab_size - len(special_tokens))
    tokens = special_tokens + list(ranked_tokens[:num_ranked])
    return models.WordLevel({token: token_id for token_id, token in enumerate(tokens)}, unk_token=UNK_TOKEN)


def _infer_tokenizer_kind(tokenizer_json: dict[str, Any]) -> str:
    """Return the kind of tokenizer that tokenizer.json describes, or `file` if it is none of `TOKENIZER_BUILDERS`."""
    model, pre_tokenizer = tokenizer_json["model"], tokenizer_json["pre_tokenizer"] or {}
    match model["type"], pre_tokenizer.get("type"):
        case "WordLevel", "WhitespaceSplit" if _is_treebank_normalizer(tokenizer_json["normalizer"]):
            return "words"
        case "WordLevel", "Split" if pre_tokenizer["pattern"] == {"Regex": tokenizer_guard.ANY_CHARACTER_PATTERN}:
            return "characters"
        case "BPE", "ByteLevel" if not pre_tokenizer["use_regex"] and not model["merges"]:
            return "bytes"
        case "BPE", "ByteLevel" if not tokenizer_json["added_tokens"]:
            return "bpe"
    return "file"


def _is_treebank_normalizer(normalizer: dict[str, Any] | None) -> bool:
    """Return whether a normalizer consists of exactly the Penn Treebank rules."""
    steps = (normalizer or {}).get("normalizers", [])
    replacements = [(step["pattern"]["Regex"], step["content"]) for step in steps if step["type"] == "Replace"]
    return replacements == list(treebank.TREEBANK_RULES)


def list_byte_characters() -> dict[int, str]:
    """Return the character that represents each byte in the vocabulary of byte and BPE tokenizers of a corpus.

    Printable bytes represent themselves; the others are numbered from 256. Radford et al. 2019, GPT-2.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    unprintable = (byte for byte in range(256) if byte not in printable)
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(unprintable)}
