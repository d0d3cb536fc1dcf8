"""Store the samples of a decoding comparison and their scores in samples.jsonl and scores.jsonl."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headtohead.decoding_comparison.request import DecodingRequest
from headtohead.generation.likelihood import Likelihood
from headtohead.generation.strategies import Strategy
from headtohead.json_files import append_jsonl, repair_jsonl

SAMPLES_FILE = "samples.jsonl"
SCORES_FILE = "scores.jsonl"
JsonRecord = dict[str, Any]


@dataclass
class SampleStore:
    """Samples and their scores, appended to disk as they are computed, and keyed by a hash of their inputs."""

    folder: Path
    request: DecodingRequest
    generator_digest: str
    scorer_digest: str | None
    """digest of the second model; None without one"""
    samples: dict[str, JsonRecord] = field(init=False)
    scores: dict[str, JsonRecord] = field(init=False)
    """the records in samples.jsonl and scores.jsonl, by key"""

    def __post_init__(self) -> None:
        self.samples = {line["key"]: line for line in repair_jsonl(self.folder / SAMPLES_FILE, is_own_cache=True)}
        self.scores = {line["key"]: line for line in repair_jsonl(self.folder / SCORES_FILE, is_own_cache=True)}

    def compute_sample_key(self, strategy: Strategy, prompt_index: int, sample_index: int) -> str:
        """Return the key of a sample: a hash of all inputs that determine its text."""
        request, text = self.request, self.request.prompts[prompt_index].text
        return _hash_key_inputs(
            self.generator_digest, str(strategy), text, sample_index, request.seed, request.max_new_tokens
        )

    def get_sample(self, strategy: Strategy, prompt_index: int, sample_index: int) -> JsonRecord:
        """Return the record for a sample that is on disk."""
        return self.samples[self.compute_sample_key(strategy, prompt_index, sample_index)]

    def has_samples(self, strategy: Strategy, prompt_index: int, num_samples: int) -> bool:
        """Return whether all of a prompt's samples are on disk."""
        keys = (self.compute_sample_key(strategy, prompt_index, index) for index in range(num_samples))
        return all(key in self.samples for key in keys)

    def add_sample(self, record: JsonRecord) -> None:
        """Append a sample to disk unless it is already there."""
        if record["key"] not in self.samples:
            append_jsonl(self.folder / SAMPLES_FILE, record)
            self.samples[record["key"]] = record

    def compute_score_key(self, prompt_index: int, text: str) -> str:
        """Return the key of a text's score: a hash of the second model, the prompt and the text."""
        return _hash_key_inputs(self.scorer_digest, self.request.prompts[prompt_index].text, text)

    def add_score(self, prompt_index: int, text: str, likelihood: Likelihood) -> None:
        """Append a text's likelihood under the second model to disk."""
        record = {"key": self.compute_score_key(prompt_index, text), **asdict(likelihood)}
        append_jsonl(self.folder / SCORES_FILE, record)
        self.scores[record["key"]] = record

    def get_score(self, prompt_index: int, text: str) -> Likelihood | None:
        """Return a text's likelihood under the second model, or None if there is no second model."""
        if self.scorer_digest is None:
            return None
        record = self.scores[self.compute_score_key(prompt_index, text)]
        return Likelihood(record["loss"], record["tokens"], record["bytes"], record["unknown"])


def _hash_key_inputs(*key_inputs: object) -> str:
    """Return the key of a record: a hash of JSON-serializable inputs."""
    return hashlib.blake2b(json.dumps(key_inputs).encode(), digest_size=12).hexdigest()
