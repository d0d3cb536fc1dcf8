"""A pretrained model's tokenizer, behind the interface of our own tokenizers.

Special tokens are not parsed from text, so that a text cannot inject them; only a chat template inserts them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headtohead.data.tokenization import tokenizer_guard
from headtohead.errors import ModelError
from headtohead.pretrained.weights import PretrainedWeights

# One of these files contains the vocabulary. Without any, transformers silently creates an empty tokenizer.
VOCABULARY_FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model", "tekken.json")


class PretrainedTokenizer:
    """Encodes and decodes text with a transformers tokenizer."""

    def __init__(self, backend: Any, name: str = "", extra_eos_ids: Sequence[int] = ()) -> None:
        """Wrap the tokenizer of a pretrained model and collect its special tokens."""
        self.backend = backend
        self.name = name
        self.kind = "pretrained"
        self.vocab_size: int = len(backend)
        self.pad_id: int | None = backend.pad_token_id
        self.unk_id: int | None = backend.unk_token_id
        self.bos_id: int | None = backend.bos_token_id if backend.bos_token_id is not None else backend.cls_token_id
        stop_id = backend.eos_token_id if backend.eos_token_id is not None else backend.sep_token_id
        stop_ids = [*([] if stop_id is None else [stop_id]), *extra_eos_ids]
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys(stop_ids))
        self.eos_id: int | None = self.stop_ids[0] if self.stop_ids else None
        fast_backend = getattr(backend, "backend_tokenizer", None)
        self._guard = None if fast_backend is None else tokenizer_guard.create_tokenizer_guard(fast_backend.to_str())
        self._skipped_ids = {self.pad_id, self.bos_id, *self.stop_ids}

    @classmethod
    def load(cls, weights: PretrainedWeights, model: Any) -> PretrainedTokenizer:
        """Return the tokenizer in a model folder or GGUF file, with the stop tokens from its generation config."""
        from transformers import AutoTokenizer

        if not weights.gguf_file and not any((weights.folder / name).is_file() for name in VOCABULARY_FILES):
            raise ModelError(f"{weights.folder}: no tokenizer found next to the weights ({VOCABULARY_FILES[0]})")
        gguf_argument = {"gguf_file": weights.gguf_file} if weights.gguf_file else {}
        try:
            backend = AutoTokenizer.from_pretrained(
                weights.folder, local_files_only=True, trust_remote_code=False, **gguf_argument
            )
        except Exception as error:  # tokenizers raises a plain Exception for unreadable files
            reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
            raise ModelError(f"{weights.name}: the tokenizer cannot be loaded ({reason})") from error
        generation_config = getattr(model, "generation_config", None)
        eos = getattr(generation_config, "eos_token_id", None)
        eos_ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
        return cls(backend, weights.name, eos_ids)

    def encode(self, text: str) -> list[int]:
        """Return a text's token ids, without special tokens."""
        self._check_encodable(text)
        ids: list[int] = self.backend.encode(text, add_special_tokens=False, split_special_tokens=True)
        return ids

    def _check_encodable(self, text: str) -> None:
        """Raise DataError if encoding a text takes too much time or memory."""
        if self._guard is not None:
            self._guard.check_encoding([text])

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, without special tokens."""
        return [self.encode(text) for text in texts]

    def encode_with_start_token(self, text: str) -> list[int]:
        """Return the token ids of a text, after a start token if the model was trained with one."""
        empty_encoding = self.backend.encode("")
        return [
            *(empty_encoding[:1] if empty_encoding and empty_encoding[0] == self.bos_id else []),
            *self.encode(text),
        ]

    def encode_with_special_tokens(self, text: str) -> list[int]:
        """Return the token ids with the special tokens an encoder was trained with: [CLS] ... [SEP]."""
        self._check_encodable(text)
        ids: list[int] = self.backend.encode(text, add_special_tokens=True, split_special_tokens=True)
        return ids

    def encode_batch_with_special_tokens(self, texts: Sequence[str], max_length: int) -> tuple[list[list[int]], int]:
        """Return the token ids of each text, truncated to `max_length`, and the number of truncated texts."""
        encoded, num_truncated = [], 0
        for text in texts:
            ids = self.encode_with_special_tokens(text)
            if len(ids) > max_length:
                num_truncated += 1
                ids = self.backend.encode(
                    text, add_special_tokens=True, split_special_tokens=True, truncation=True, max_length=max_length
                )
            encoded.append(ids)
        return encoded, num_truncated

    def save(self, folder: Path) -> None:
        """Write the tokenizer files in transformers' format."""
        self.backend.save_pretrained(folder)

    def encode_chat_message(self, message: str) -> list[int]:
        """Return the token ids of a user's message in the chat template of the model, up to the start of the reply."""
        if not self.backend.chat_template:
            raise ModelError(f"{self.name}: the tokenizer has no chat template; use a plain prompt")
        messages = [{"role": "user", "content": message}]
        prompt = self.backend.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        self._check_encodable(prompt)
        ids: list[int] = self.backend.encode(prompt, add_special_tokens=False)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the decoded text, without padding, start and stop tokens."""
        kept_ids = [int(token_id) for token_id in ids if token_id not in self._skipped_ids]
        if self._guard is not None:
            self._guard.check_decoding(kept_ids)
        text: str = self.backend.decode(kept_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def id_to_token(self, id: int) -> str:
        """Return the vocabulary entry for a token id."""
        token = self.backend.convert_ids_to_tokens(int(id)) if 0 <= id < self.vocab_size else None
        if token is None:
            raise IndexError(f"no token {id} in a vocabulary of {self.vocab_size}")
        return str(token)
