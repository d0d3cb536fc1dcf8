"""A comparison of strategies under way: what is there is found by its key, what is missing is made and put on the disk.

samples.jsonl and scores.jsonl are described in `decoding`; what comes out of them is decoding.json.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from headtohead.atomic_io import append_jsonl, repair_jsonl
from headtohead.decoding_comparison.compare import (
    HUMAN_METRICS,
    PromptRatios,
    ScoredContinuation,
    compare_strategies,
    compute_prompt_ratios,
    describe_metrics,
    estimate_metric,
)
from headtohead.decoding_comparison.limit_checks import check_limit_invariants
from headtohead.decoding_comparison.request import DecodingRequest
from headtohead.errors import RunFolderError
from headtohead.experiment.open_model import FingerprintedModel
from headtohead.generation import strategy_parsing
from headtohead.generation.detokenizer import decode_continuation, encode_prompt
from headtohead.generation.generate import ContextOverflowWarning, generate
from headtohead.generation.likelihood import (
    Likelihood,
    compute_continuation_losses,
    compute_text_likelihoods,
    encode_pair,
)
from headtohead.generation.strategies import Strategy
from headtohead.generation.strategy_parsing import SweepPoint
from headtohead.generation.trace import build_trace, explain_missing_distribution
from headtohead.text_metrics import diversity

SCHEMA_VERSION = 1
SAMPLES_FILE, SCORES_FILE = "samples.jsonl", "scores.jsonl"
CHUNK_SIZE = 64
"""continuations between two writes to the disk"""

JsonRecord = dict[str, Any]
PhaseProgressCallback = Callable[[str, int, int], None]
"""what is being done, how much of it is done, how much there is"""


@dataclass
class DecodingComparison:
    """A comparison under way: what is there is found by its key, what is missing is made and put on the disk."""

    writer: FingerprintedModel
    judge: FingerprintedModel | None
    asked: DecodingRequest
    folder: Path
    watch: PhaseProgressCallback
    lines: dict[str, JsonRecord] = field(default_factory=dict)
    scores: dict[str, JsonRecord] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lines = {line["key"]: line for line in repair_jsonl(self.folder / SAMPLES_FILE)}
        self.scores = {line["key"]: line for line in repair_jsonl(self.folder / SCORES_FILE)}

    def found(self) -> dict[str, Any]:
        """Everything that the report shows, as plain JSON values."""
        asked = self.asked
        points = strategy_parsing.build_sweep_points(int(self.writer.tokenizer.vocab_size)) if asked.sweep else []
        wanted = {**dict.fromkeys(asked.strategies, asked.samples), **self._count_sweep_only_samples(points)}
        chosen = {**{point.name: point.strategy for point in points}, **asked.strategies}
        self._write({name: (chosen[name], count) for name, count in wanted.items()})
        of_people = [(at, text) for at, (_, text) in enumerate(self._truncated_references) if text is not None]
        self._judge([*self._texts(chosen, wanted), *of_people])
        by_strategy = {
            name: self._compute_strategy_ratios(name, one, asked.samples) for name, one in asked.strategies.items()
        }
        people = self._compute_prompt_ratios(self._score_human_continuations())
        return {
            "schema": SCHEMA_VERSION,
            "model": self.writer.to_dict(),
            "second": None if self.judge is None else self.judge.to_dict(),
            "settings": asked.to_dict(),
            "signatures": diversity.get_sacrebleu_signatures(),
            "prompts": [asdict(prompt) for prompt in asked.prompts],
            "baseline": asked.baseline,
            "measures": describe_metrics(by_strategy),
            **compare_strategies(by_strategy, asked.baseline),
            "people": {
                name: found.to_dict()
                for name in HUMAN_METRICS
                if name in people and (found := estimate_metric(name, people[name])) is not None
            },
            "sweep": {"samples": asked.num_sweep_samples, "points": self._build_sweep_rows(points)},
            "traces": self._build_traces(),
            "laws": self._check_limit_invariants(),
            "notes": self._build_notes(chosen, wanted),
        }

    # -- writing

    def _write(self, strategies_and_counts: dict[str, tuple[Strategy, int]]) -> None:
        """Continue every prompt with every strategy, where that is not there yet."""
        missing = {
            name: [at for at in range(len(self.asked.prompts)) if not self._has_samples(one, at, count)]
            for name, (one, count) in strategies_and_counts.items()
        }
        total = sum(len(found) * strategies_and_counts[name][1] for name, found in missing.items())
        done = 0
        for name, prompts in missing.items():
            one, count = strategies_and_counts[name]
            size = (
                CHUNK_SIZE // count
                if one.mode == "sample" and count < CHUNK_SIZE
                else 1
                if one.mode == "sample"
                else CHUNK_SIZE // 2
            )
            for at in range(0, len(prompts), size):
                self.watch(f"writing: {name}", done, total)
                self._generate_samples(name, one, prompts[at : at + size], count)
                done += count * len(prompts[at : at + size])
        self.watch("writing", done, total)

    def _has_samples(self, strategy: Strategy, prompt_index: int, num_samples: int) -> bool:
        return all(
            self._compute_sample_key(strategy, prompt_index, sample) in self.lines for sample in range(num_samples)
        )

    def _compute_sample_key(self, strategy: Strategy, prompt_index: int, sample_index: int) -> str:
        asked = self.asked
        text = asked.prompts[prompt_index].text
        return _compute_key(self.writer.digest, str(strategy), text, sample_index, asked.seed, asked.max_new_tokens)

    def _generate_samples(self, name: str, strategy: Strategy, prompt_indices: Sequence[int], num_samples: int) -> None:
        """Some prompts with one strategy. What does not draw writes the same each time, and is asked once."""
        asked, repeats = self.asked, 1 if strategy.mode == "sample" else num_samples
        texts = [asked.prompts[at].text for at in prompt_indices]
        with _ignore_context_overflow():
            made = generate(
                self.writer.opened,
                texts,
                strategy,
                num_samples=num_samples // repeats,
                max_new_tokens=asked.max_new_tokens,
                seed=asked.seed,
                batch_size=CHUNK_SIZE,
            )
        begun = [encode_prompt(self.writer.tokenizer, texts[row.prompt]) for row in made]
        losses = compute_continuation_losses(self.writer.model, begun, [row.ids for row in made])
        for row, loss in zip(made, losses, strict=True):
            for sample in [row.sample] if repeats == 1 else range(num_samples):
                self._append_sample(
                    {
                        "key": self._compute_sample_key(strategy, prompt_indices[row.prompt], sample),
                        "model": self.writer.digest,
                        "strategy": name,
                        "seed": asked.seed,
                        "max_new_tokens": asked.max_new_tokens,
                        "prompt": texts[row.prompt],
                        "sample": sample,
                        "ids": list(row.ids),
                        "text": row.text,
                        "finish_reason": row.finish_reason,
                        "loss": loss,
                        "tokens": len(row.ids),
                        "bytes": len(row.text.encode()),
                    }
                )

    def _append_sample(self, record: JsonRecord) -> None:
        if record["key"] not in self.lines:
            append_jsonl(self.folder / SAMPLES_FILE, record)
            self.lines[record["key"]] = record

    # -- the second model

    def _texts(self, strategies: dict[str, Strategy], sample_counts: dict[str, int]) -> Iterator[tuple[int, str]]:
        for name, count in sample_counts.items():
            for at in range(len(self.asked.prompts)):
                for sample in range(count):
                    yield at, self.lines[self._compute_sample_key(strategies[name], at, sample)]["text"]

    def _judge(self, texts: Iterable[tuple[int, str]]) -> None:
        """Ask the second model about every text that it has not seen."""
        if self.judge is None:
            return
        missing = [row for row in dict.fromkeys(texts) if self._compute_score_key(*row) not in self.scores]
        for at in range(0, len(missing), CHUNK_SIZE):
            self.watch("the second model reads", at, len(missing))
            rows = missing[at : at + CHUNK_SIZE]
            prompts = [self.asked.prompts[prompt].text for prompt, _ in rows]
            found = compute_text_likelihoods(
                self.judge.model, self.judge.tokenizer, prompts, [text for _, text in rows]
            )
            for row, one in zip(rows, found, strict=True):
                line = {"key": self._compute_score_key(*row), **asdict(one)}
                append_jsonl(self.folder / SCORES_FILE, line)
                self.scores[line["key"]] = line
        self.watch("the second model reads", len(missing), len(missing))

    def _compute_score_key(self, prompt_index: int, text: str) -> str:
        assert self.judge is not None
        return _compute_key(self.judge.digest, self.asked.prompts[prompt_index].text, text)

    def _get_scoring_model_likelihood(self, prompt_index: int, text: str) -> Likelihood | None:
        if self.judge is None:
            return None
        line = self.scores[self._compute_score_key(prompt_index, text)]
        return Likelihood(line["loss"], line["tokens"], line["bytes"], line["unknown"])

    # -- what comes of it

    def _collect_continuations(self, strategy: Strategy, num_samples: int) -> list[ScoredContinuation]:
        made = []
        for at in range(len(self.asked.prompts)):
            for sample in range(num_samples):
                line = self.lines[self._compute_sample_key(strategy, at, sample)]
                own = Likelihood(line["loss"], line["tokens"], line["bytes"])
                text = line["text"]
                made.append(
                    ScoredContinuation(
                        at, sample, tuple(line["ids"]), text, own, self._get_scoring_model_likelihood(at, text)
                    )
                )
        return made

    def _compute_strategy_ratios(self, name: str, strategy: Strategy, num_samples: int) -> dict[str, PromptRatios]:
        self.watch(f"measuring: {name}", 0, 0)
        return self._compute_prompt_ratios(self._collect_continuations(strategy, num_samples))

    def _compute_prompt_ratios(self, continuations: Sequence[ScoredContinuation]) -> dict[str, PromptRatios]:
        return compute_prompt_ratios(
            continuations, len(self.asked.prompts), [text for _, text in self._truncated_references]
        )

    @cached_property
    def _truncated_references(self) -> list[tuple[list[int], str | None]]:
        """What people wrote, as tokens and as text, no longer than a sample may be."""
        made: list[tuple[list[int], str | None]] = []
        for prompt in self.asked.prompts:
            if not prompt.continuation:
                made.append(([], None))
                continue
            joint = "" if not prompt.text or prompt.text[-1].isspace() else " "
            begun, written = encode_pair(self.writer.tokenizer, prompt.text, joint + prompt.continuation)
            written = written[: self.asked.max_new_tokens]
            made.append((written, decode_continuation(self.writer.tokenizer, begun, written)))
        return made

    def _score_human_continuations(self) -> list[ScoredContinuation]:
        """People's continuations as if a strategy had written them."""
        rows = [(at, ids, text) for at, (ids, text) in enumerate(self._truncated_references) if text is not None]
        begun = [encode_prompt(self.writer.tokenizer, self.asked.prompts[at].text) for at, _, _ in rows]
        losses = compute_continuation_losses(self.writer.model, begun, [ids for _, ids, _ in rows])
        return [
            ScoredContinuation(
                at,
                0,
                tuple(ids),
                text,
                Likelihood(loss, len(ids), len(text.encode())),
                self._get_scoring_model_likelihood(at, text),
            )
            for (at, ids, text), loss in zip(rows, losses, strict=True)
        ]

    # -- the sweep

    def _count_sweep_only_samples(self, points: Sequence[SweepPoint]) -> dict[str, int]:
        """How many samples the sweep needs of strategies that are not compared anyway."""
        there = {str(one) for one in self.asked.strategies.values()}
        return {point.name: self.asked.num_sweep_samples for point in points if str(point.strategy) not in there}

    def _build_sweep_rows(self, points: Sequence[SweepPoint]) -> list[dict[str, Any]]:
        made, known = [], {}
        for order, point in enumerate(points):
            if point.name not in known:
                columns = self._compute_strategy_ratios(point.name, point.strategy, self.asked.num_sweep_samples)
                known[point.name] = {
                    name: found.to_dict()
                    for name, column in columns.items()
                    if (found := estimate_metric(name, column))
                }
            row = {"family": point.family, "label": point.label, "endpoint": point.endpoint, "strategy": point.name}
            made.append({**row, "order": order, "figures": known[point.name]})
        return made

    # -- a closer look

    def _build_traces(self) -> list[dict[str, Any]]:
        """The first sample of the first prompt, token by token, for each strategy."""
        asked, made = self.asked, []
        for number, (name, one) in enumerate(asked.strategies.items()):
            self.watch(f"token by token: {name}", number, len(asked.strategies))
            with _ignore_context_overflow():
                steps = build_trace(
                    self.writer.opened,
                    self.writer.tokenizer,
                    asked.prompts[0].text,
                    one,
                    max_new_tokens=asked.max_new_tokens,
                    seed=asked.seed,
                )
            line = self.lines[self._compute_sample_key(one, 0, 0)]
            self._check_trace_matches_sample(line, steps)
            made.append(
                {
                    "strategy": name,
                    "prompt": 0,
                    "text": line["text"],
                    "note": explain_missing_distribution(one),
                    "steps": steps,
                }
            )
        return made

    def _check_trace_matches_sample(self, record: JsonRecord, steps: Sequence[dict[str, Any]]) -> None:
        """What is drawn anew must be what was kept: samples of a version that drew differently are not to be mixed."""
        drawn = [step["id"] for step in steps][: len(record["ids"])]
        if drawn != record["ids"]:
            raise RunFolderError(
                f"{self.folder / SAMPLES_FILE}: {record['strategy']} writes another text now than it did then (another "
                "version of the package?); give another --out"
            )

    def _check_limit_invariants(self) -> list[dict[str, Any]]:
        self.watch("limits as laws", 0, 0)
        asked = self.asked

        def write(one: Strategy, prompts: Sequence[int]) -> list[list[int]]:
            texts = [asked.prompts[at].text for at in prompts]
            with _ignore_context_overflow():
                made = generate(
                    self.writer.opened,
                    texts,
                    one,
                    max_new_tokens=asked.max_new_tokens,
                    seed=asked.seed,
                    batch_size=CHUNK_SIZE,
                )
            return [list(row.ids) for row in made]

        return check_limit_invariants(
            self.writer.model, [encode_prompt(self.writer.tokenizer, one.text) for one in asked.prompts], write
        )

    def _build_notes(self, strategies: dict[str, Strategy], sample_counts: dict[str, int]) -> list[str]:
        """What a reader must know before the figures."""
        said = []
        longest = max(len(encode_prompt(self.writer.tokenizer, one.text)) for one in self.asked.prompts)
        if longest + self.asked.max_new_tokens > self.writer.model.context:
            said.append(
                f"Some texts are longer than the model’s context of {self.writer.model.context} tokens: by the end it "
                "has forgotten how they began."
            )
        if self.judge is not None:
            keys = {self._compute_score_key(*row) for row in self._texts(strategies, sample_counts)}
            unknown, tokens = (sum(self.scores[key][what] for key in keys) for what in ("unknown", "tokens"))
            if unknown:
                said.append(
                    f"The second model does not know {100 * unknown / tokens:.1f} % of its tokens in these texts. It "
                    "guesses “unknown” too easily, so its bits per byte flatter texts with rare words."
                )
        return said


def _compute_key(*parts: object) -> str:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=12).hexdigest()


class _ignore_context_overflow(warnings.catch_warnings):  # noqa: N801  used as a statement
    """A text that outgrows the context is said once, in the report, and not at every chunk."""

    def __enter__(self) -> Any:
        entered = super().__enter__()
        warnings.simplefilter("ignore", ContextOverflowWarning)
        return entered
