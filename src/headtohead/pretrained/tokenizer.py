"""A pretrained model's tokenizer, with the methods that our own tokenizers have.

Special tokens are not looked for in texts, so that a text which spells one cannot pass for it; only a chat template may
put them there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headtohead.errors import ModelError
from headtohead.pretrained.weights import PretrainedWeights

# One of these holds the vocabulary; without any, the library would make a tokenizer with none and say nothing.
VOCABULARY_FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model", "tekken.json")


class PretrainedTokenizer:
    """Text to numbers and back, through a tokenizer of the transformers library."""

    def __init__(self, backend: Any, name: str = "", extra_eos_ids: Sequence[int] = ()) -> None:
        self.backend = backend
        self.name = name
        self.kind = "pretrained"
        self.vocab_size: int = len(backend)
        self.pad_id: int | None = backend.pad_token_id
        self.unk_id: int | None = backend.unk_token_id
        self.bos_id: int | None = backend.bos_token_id if backend.bos_token_id is not None else backend.cls_token_id
        stop = backend.eos_token_id if backend.eos_token_id is not None else backend.sep_token_id
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys([*([] if stop is None else [stop]), *extra_eos_ids]))
        self.eos_id: int | None = self.stop_ids[0] if self.stop_ids else None
        self._skipped_ids = {self.pad_id, self.bos_id, *self.stop_ids}

    @classmethod
    def load(cls, weights: PretrainedWeights, model: Any) -> PretrainedTokenizer:
        """The tokenizer beside the weights, or inside the GGUF file; stop tokens as the model's settings have them."""
        from transformers import AutoTokenizer

        if not weights.gguf_file and not any((weights.folder / name).is_file() for name in VOCABULARY_FILES):
            raise ModelError(f"{weights.folder}: has no tokenizer beside the weights ({VOCABULARY_FILES[0]})")
        gguf = {"gguf_file": weights.gguf_file} if weights.gguf_file else {}
        try:
            backend = AutoTokenizer.from_pretrained(
                weights.folder, local_files_only=True, trust_remote_code=False, **gguf
            )
        except Exception as error:  # the tokenizers library raises plain Exception for what it cannot read
            reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
            raise ModelError(f"{weights.name}: no tokenizer can be read beside the weights ({reason})") from error
        settings = getattr(model, "generation_config", None)
        named = getattr(settings, "eos_token_id", None)
        stops = named if isinstance(named, list) else [] if named is None else [named]
        return cls(backend, weights.name, stops)

    def encode(self, text: str) -> list[int]:
        """The text alone, without a start or a stop."""
        ids: list[int] = self.backend.encode(text, add_special_tokens=False, split_special_tokens=True)
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(row) for row in texts]

    def prompt(self, text: str) -> list[int]:
        """The text as the model expects to read it: with a start token where it was trained with one."""
        empty = self.backend.encode("")
        return [*(empty[:1] if empty and empty[0] == self.bos_id else []), *self.encode(text)]

    def encode_with_special_tokens(self, text: str) -> list[int]:
        """The text with every token that the model expects around it, as an encoder was trained: [CLS] ... [SEP]."""
        ids: list[int] = self.backend.encode(text, add_special_tokens=True, split_special_tokens=True)
        return ids

    def encode_batch_with_special_tokens(self, texts: Sequence[str], max_length: int) -> tuple[list[list[int]], int]:
        """Each text in its frame, cut to so many tokens inside it; and how many texts lost their end."""
        found, cut = [], 0
        for row in texts:
            whole = self.encode_with_special_tokens(row)
            if len(whole) > max_length:
                cut += 1
                whole = self.backend.encode(
                    row, add_special_tokens=True, split_special_tokens=True, truncation=True, max_length=max_length
                )
            found.append(whole)
        return found, cut

    def save(self, folder: Path) -> None:
        """The tokenizer's files, as the library writes them."""
        self.backend.save_pretrained(folder)

    def chat(self, text: str) -> list[int]:
        """The text as a user's turn in the model's own chat template, and the beginning of the answer."""
        if not self.backend.chat_template:
            raise ModelError(f"{self.name}: has no chat template; give the text as a plain prompt")
        turn = [{"role": "user", "content": text}]
        said = self.backend.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
        ids: list[int] = self.backend.encode(said, add_special_tokens=False)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Readable text; padding, start and stop are left out."""
        shown = [int(i) for i in ids if i not in self._skipped_ids]
        text: str = self.backend.decode(shown, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def id_to_token(self, id: int) -> str:
        """The entry of the vocabulary, as it stands there."""
        token = self.backend.convert_ids_to_tokens(int(id)) if 0 <= id < self.vocab_size else None
        if token is None:
            raise IndexError(f"no token {id} in a vocabulary of {self.vocab_size}")
        return str(token)
