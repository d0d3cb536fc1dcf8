"""Generate, score and summarise a decoding comparison's samples, reusing those that are already on disk.

The files samples.jsonl and scores.jsonl are described in `run_comparison`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from headtohead.decoding_comparison import compare
from headtohead.decoding_comparison.compare import PromptRatios, ScoredContinuation
from headtohead.decoding_comparison.limit_checks import check_limit_invariants
from headtohead.decoding_comparison.request import DecodingRequest
from headtohead.decoding_comparison.results import (
    DecodingResults,
    LimitCheck,
    ModelIdentity,
    StrategyTrace,
    SweepPointResult,
    SweepResults,
    TraceStep,
)
from headtohead.decoding_comparison.sample_store import SAMPLES_FILE, SampleStore
from headtohead.errors import RunFolderError
from headtohead.generation import likelihood, strategy_parsing
from headtohead.generation.detokenizer import decode_continuation, encode_prompt
from headtohead.generation.generate import ContextOverflowWarning, Continuation, generate
from headtohead.generation.likelihood import Likelihood
from headtohead.generation.strategies import Strategy
from headtohead.generation.strategy_parsing import SweepPoint
from headtohead.generation.trace import build_trace, explain_missing_distribution
from headtohead.progress import ProgressCallback, ProgressReporter, ProgressUpdate
from headtohead.saved_models.open_model import FingerprintedModel
from headtohead.text_metrics import diversity

CHUNK_SIZE = 64
"""continuations generated between two writes to disk"""


@dataclass
class DecodingComparison:
    """A comparison whose samples and scores are appended to disk as they are computed.

    Records that are already in the folder are found by their key and reused.
    """

    generator: FingerprintedModel
    """the model that generates the texts"""
    scorer: FingerprintedModel | None
    """the second model, which scores them"""
    request: DecodingRequest
    folder: Path
    on_progress: ProgressCallback

    def __post_init__(self) -> None:
        scorer_digest = self.scorer.digest if self.scorer else None
        self.store = SampleStore(self.folder, self.request, self.generator.digest, scorer_digest)

    def run(self, *, command: list[str], versions: dict[str, str]) -> DecodingResults:
        """Generate and score missing samples; return the results for the report."""
        request = self.request
        points = strategy_parsing.build_sweep_points(int(self.generator.tokenizer.vocab_size)) if request.sweep else []
        sample_counts = {**dict.fromkeys(request.strategies, request.samples), **self._count_sweep_only_samples(points)}
        strategies = {**{point.name: point.strategy for point in points}, **request.strategies}
        self._generate_missing_samples({name: (strategies[name], count) for name, count in sample_counts.items()})
        human_texts = [(index, text) for index, (_, text) in enumerate(self._truncated_references) if text is not None]
        self._score_missing_texts([*self._iter_texts(strategies, sample_counts), *human_texts])
        ratios_by_strategy = {
            name: self._compute_strategy_ratios(name, strategy, request.samples)
            for name, strategy in request.strategies.items()
        }
        human_ratios = self._compute_prompt_ratios(self._score_human_continuations())
        return DecodingResults(
            command=command,
            versions=versions,
            model=_identify(self.generator),
            scoring_model=_identify(self.scorer) if self.scorer else None,
            settings=request.describe_settings(),
            signatures=diversity.get_sacrebleu_signatures(),
            prompts=request.prompts,
            baseline=request.baseline,
            metrics=compare.list_metrics(ratios_by_strategy),
            estimates={name: compare.estimate_metrics(ratios) for name, ratios in ratios_by_strategy.items()},
            human=compare.estimate_metrics(
                {name: human_ratios[name] for name in compare.HUMAN_METRICS if name in human_ratios}
            ),
            pairs=compare.compare_strategies(ratios_by_strategy, request.baseline),
            sweep=SweepResults(samples=request.num_sweep_samples, points=self._estimate_sweep(points)),
            traces=self._build_traces(),
            limit_checks=self._check_limit_invariants(),
            notes=self._build_notes(strategies, sample_counts),
        )

    # -- generation

    def _generate_missing_samples(self, strategies_and_counts: dict[str, tuple[Strategy, int]]) -> None:
        """Continue every prompt with every strategy, except where all samples exist.

        `strategies_and_counts` maps a strategy name to the strategy and its number of samples per prompt.
        """
        missing_prompts = {
            name: [i for i in range(len(self.request.prompts)) if not self.store.has_samples(strategy, i, count)]
            for name, (strategy, count) in strategies_and_counts.items()
        }
        total = sum(len(prompts) * strategies_and_counts[name][1] for name, prompts in missing_prompts.items())
        progress = ProgressReporter("generating samples", total, self.on_progress)
        for name, prompts in missing_prompts.items():
            strategy, count = strategies_and_counts[name]
            prompts_per_chunk = max(1, CHUNK_SIZE // count) if strategy.mode == "sample" else CHUNK_SIZE // 2
            for start in range(0, len(prompts), prompts_per_chunk):
                chunk = prompts[start : start + prompts_per_chunk]
                self._generate_samples(name, strategy, chunk, count)
                progress.step(count * len(chunk))

    def _continue_prompts(
        self, strategy: Strategy, prompt_indices: Sequence[int], num_samples: int = 1
    ) -> list[Continuation]:
        """Return `num_samples` continuations for each prompt."""
        request = self.request
        texts = [request.prompts[index].text for index in prompt_indices]
        # The report mentions texts that exceed the context once, instead of issuing a warning per chunk.
        with warnings.catch_warnings(action="ignore", category=ContextOverflowWarning):
            return generate(
                self.generator.opened,
                texts,
                strategy,
                num_samples=num_samples,
                max_new_tokens=request.max_new_tokens,
                seed=request.seed,
                batch_size=CHUNK_SIZE,
            )

    def _generate_samples(self, name: str, strategy: Strategy, prompt_indices: Sequence[int], num_samples: int) -> None:
        """Continue some prompts with one strategy, and append the samples to disk.

        Deterministic strategies generate one continuation per prompt, which is recorded for every sample.
        """
        request, repeats = self.request, 1 if strategy.mode == "sample" else num_samples
        texts = [request.prompts[index].text for index in prompt_indices]
        continuations = self._continue_prompts(strategy, prompt_indices, num_samples // repeats)
        encoded_prompts = [
            encode_prompt(self.generator.tokenizer, texts[continuation.prompt]) for continuation in continuations
        ]
        losses = likelihood.compute_continuation_losses(
            self.generator.model, encoded_prompts, [continuation.ids for continuation in continuations]
        )
        for continuation, loss in zip(continuations, losses, strict=True):
            prompt_index = prompt_indices[continuation.prompt]
            for sample_index in [continuation.sample] if repeats == 1 else range(num_samples):
                self.store.add_sample(
                    {
                        "key": self.store.compute_sample_key(strategy, prompt_index, sample_index),
                        "model": self.generator.digest,
                        "strategy": name,
                        "seed": request.seed,
                        "max_new_tokens": request.max_new_tokens,
                        "prompt": texts[continuation.prompt],
                        "sample": sample_index,
                        "ids": list(continuation.ids),
                        "text": continuation.text,
                        "finish_reason": continuation.finish_reason,
                        "loss": loss,
                        "tokens": len(continuation.ids),
                        "bytes": len(continuation.text.encode()),
                    }
                )

    # -- scoring by the second model

    def _iter_texts(self, strategies: dict[str, Strategy], sample_counts: dict[str, int]) -> Iterator[tuple[int, str]]:
        """Yield (prompt index, text) for every sample."""
        for name, count in sample_counts.items():
            for prompt_index in range(len(self.request.prompts)):
                for sample_index in range(count):
                    yield prompt_index, self.store.get_sample(strategies[name], prompt_index, sample_index)["text"]

    def _score_missing_texts(self, texts: Iterable[tuple[int, str]]) -> None:
        """Score (prompt index, text) pairs that the second model has not scored yet."""
        if self.scorer is None:
            return
        store = self.store
        missing = [pair for pair in dict.fromkeys(texts) if store.compute_score_key(*pair) not in store.scores]
        progress = ProgressReporter("scoring with the second model", len(missing), self.on_progress)
        for start in range(0, len(missing), CHUNK_SIZE):
            chunk = missing[start : start + CHUNK_SIZE]
            prompts = [self.request.prompts[prompt_index].text for prompt_index, _ in chunk]
            texts_of_chunk = [text for _, text in chunk]
            scores = likelihood.compute_text_likelihoods(
                self.scorer.model, self.scorer.tokenizer, prompts, texts_of_chunk
            )
            for pair, score in zip(chunk, scores, strict=True):
                store.add_score(*pair, score)
            progress.step(len(chunk))

    # -- metrics

    def _collect_continuations(self, strategy: Strategy, num_samples: int) -> list[ScoredContinuation]:
        """Return all of a strategy's samples with their likelihoods."""
        continuations = []
        for prompt_index in range(len(self.request.prompts)):
            for sample_index in range(num_samples):
                record = self.store.get_sample(strategy, prompt_index, sample_index)
                ids, text = tuple(record["ids"]), record["text"]
                score = Likelihood(record["loss"], record["tokens"], record["bytes"])
                second_score = self.store.get_score(prompt_index, text)
                continuations.append(ScoredContinuation(prompt_index, sample_index, ids, text, score, second_score))
        return continuations

    def _compute_strategy_ratios(self, name: str, strategy: Strategy, num_samples: int) -> dict[str, PromptRatios]:
        """Return the ratios for every metric over a strategy's samples."""
        self.on_progress(ProgressUpdate(f"computing metrics of {name}", 0, 0))
        return self._compute_prompt_ratios(self._collect_continuations(strategy, num_samples))

    def _compute_prompt_ratios(self, continuations: Sequence[ScoredContinuation]) -> dict[str, PromptRatios]:
        return compare.compute_prompt_ratios(
            continuations, len(self.request.prompts), [text for _, text in self._truncated_references]
        )

    @cached_property
    def _truncated_references(self) -> list[tuple[list[int], str | None]]:
        """Token ids and text of each human continuation, truncated to `max_new_tokens`; the text is None if unknown."""
        references: list[tuple[list[int], str | None]] = []
        for prompt in self.request.prompts:
            if not prompt.continuation:
                references.append(([], None))
                continue
            separator = "" if not prompt.text or prompt.text[-1].isspace() else " "
            context_ids, continuation_ids = likelihood.encode_pair(
                self.generator.tokenizer, prompt.text, separator + prompt.continuation
            )
            continuation_ids = continuation_ids[: self.request.max_new_tokens]
            references.append(
                (continuation_ids, decode_continuation(self.generator.tokenizer, context_ids, continuation_ids))
            )
        return references

    def _score_human_continuations(self) -> list[ScoredContinuation]:
        """Return the human continuations in the same form as generated ones, one per prompt."""
        references = [
            (index, ids, text) for index, (ids, text) in enumerate(self._truncated_references) if text is not None
        ]
        losses = likelihood.compute_continuation_losses(
            self.generator.model,
            [encode_prompt(self.generator.tokenizer, self.request.prompts[index].text) for index, _, _ in references],
            [ids for _, ids, _ in references],
        )
        continuations = []
        for (index, ids, text), loss in zip(references, losses, strict=True):
            scores = Likelihood(loss, len(ids), len(text.encode())), self.store.get_score(index, text)
            continuations.append(ScoredContinuation(index, 0, tuple(ids), text, *scores))
        return continuations

    # -- sweep

    def _count_sweep_only_samples(self, points: Sequence[SweepPoint]) -> dict[str, int]:
        """Return the number of samples for each sweep strategy that is not among the compared ones."""
        compared = {str(strategy) for strategy in self.request.strategies.values()}
        return {point.name: self.request.num_sweep_samples for point in points if str(point.strategy) not in compared}

    def _estimate_sweep(self, points: Sequence[SweepPoint]) -> list[SweepPointResult]:
        """Return the estimates at every point of the sweep. Points that share a strategy are computed once."""
        estimates = {}
        for point in points:
            if point.name not in estimates:
                columns = self._compute_strategy_ratios(point.name, point.strategy, self.request.num_sweep_samples)
                estimates[point.name] = compare.estimate_metrics(columns)
        return [
            SweepPointResult(
                family=point.family,
                label=point.label,
                endpoint=point.endpoint,
                strategy=point.name,
                order=order,
                estimates=estimates[point.name],
            )
            for order, point in enumerate(points)
        ]

    # -- traces, checks and notes

    def _build_traces(self) -> list[StrategyTrace]:
        """Return the token-by-token trace of the first sample of the first prompt, for each strategy."""
        request, traces = self.request, []
        for name, strategy in request.strategies.items():
            self.on_progress(ProgressUpdate(f"tracing {name} token by token", 0, 0))
            with warnings.catch_warnings(action="ignore", category=ContextOverflowWarning):
                steps = build_trace(
                    self.generator.opened,
                    self.generator.tokenizer,
                    request.prompts[0].text,
                    strategy,
                    max_new_tokens=request.max_new_tokens,
                    seed=request.seed,
                )
            sample = self.store.get_sample(strategy, 0, 0)
            if [step["id"] for step in steps][: len(sample["ids"])] != sample["ids"]:
                # The sample was written by a version that samples differently; new samples must not be mixed with it.
                raise RunFolderError(
                    f"{self.folder / SAMPLES_FILE}: {name} now generates another text than when the file was written "
                    "(another version of the package?); choose another --out"
                )
            note = explain_missing_distribution(strategy)
            trace_steps = [TraceStep.model_validate(step) for step in steps]
            traces.append(StrategyTrace(strategy=name, prompt=0, text=sample["text"], note=note, steps=trace_steps))
        return traces

    def _check_limit_invariants(self) -> list[LimitCheck]:
        """Check the strategies' limits on this model and these prompts."""
        self.on_progress(ProgressUpdate("checking limits", 0, 0))
        encoded_prompts = [encode_prompt(self.generator.tokenizer, prompt.text) for prompt in self.request.prompts]
        return check_limit_invariants(
            self.generator.model,
            encoded_prompts,
            lambda strategy, prompt_indices: [
                list(continuation.ids) for continuation in self._continue_prompts(strategy, prompt_indices)
            ],
        )

    def _build_notes(self, strategies: dict[str, Strategy], sample_counts: dict[str, int]) -> list[str]:
        """Return warnings that apply to the results, as sentences."""
        notes = []
        max_prompt_tokens = max(
            len(encode_prompt(self.generator.tokenizer, prompt.text)) for prompt in self.request.prompts
        )
        if max_prompt_tokens + self.request.max_new_tokens > self.generator.model.context:
            notes.append(
                f"Some texts exceed the model’s context of {self.generator.model.context} tokens: their last tokens "
                "were generated without the beginning of the text."
            )
        if self.scorer is not None:
            keys = {self.store.compute_score_key(*pair) for pair in self._iter_texts(strategies, sample_counts)}
            scores = [self.store.scores[key] for key in keys]
            num_unknown, num_tokens = (sum(score[name] for score in scores) for name in ("unknown", "tokens"))
            if num_unknown:
                notes.append(
                    f"{100 * num_unknown / num_tokens:.1f} % of the tokens in these texts are unknown to the second "
                    "model. Unknown tokens are easy to predict, so its bits per byte are too low for rare words."
                )
        return notes


def _identify(model: FingerprintedModel) -> ModelIdentity:
    return ModelIdentity(name=model.name, digest=model.digest)
