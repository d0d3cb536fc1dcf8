"""Generate, score and summarize the samples of a decoding comparison, reusing those that are already on disk.

The files samples.jsonl and scores.jsonl are described in `run_decoding_comparison`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from headtohead.decoding_comparison import strategy_statistics
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
from headtohead.decoding_comparison.strategy_statistics import PromptRatios, ScoredContinuation
from headtohead.decoding_comparison.sweep import SweepPoint, build_sweep_points
from headtohead.errors import RunFolderError
from headtohead.generation import likelihood
from headtohead.generation.detokenizer import decode_continuation
from headtohead.generation.generate import Continuation, generate
from headtohead.generation.likelihood import Likelihood
from headtohead.generation.prompt_encoding import encode_prompt, encode_prompt_and_continuation
from headtohead.generation.session import ContextOverflowWarning
from headtohead.generation.strategies import Strategy
from headtohead.generation.trace import build_trace, explain_missing_distribution
from headtohead.progress import ProgressCallback, ProgressReporter, ProgressUpdate
from headtohead.saved_models.fingerprint import FingerprintedModel
from headtohead.text_metrics import ngram_metrics

CHUNK_SIZE = 64
"""continuations generated between two writes to disk"""


@dataclass
class SamplingJob:
    """A decoding comparison whose samples and scores are appended to disk as they are computed.

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
        sweep_points = build_sweep_points(int(self.generator.tokenizer.vocab_size)) if request.sweep else []
        sample_counts = {
            **dict.fromkeys(request.strategies, request.samples),
            **self._count_sweep_only_samples(sweep_points),
        }
        strategies = {**{point.name: point.strategy for point in sweep_points}, **request.strategies}
        self._generate_missing_samples({name: (strategies[name], count) for name, count in sample_counts.items()})
        human_texts = [(index, text) for index, (_, text) in enumerate(self._human_continuations) if text is not None]
        self._score_missing_texts([*self._iter_generated_texts(strategies, sample_counts), *human_texts])
        ratios_by_strategy = {
            name: self._compute_strategy_ratios(name, strategy, request.samples)
            for name, strategy in request.strategies.items()
        }
        human_ratios = self._compute_prompt_ratios(self._score_human_continuations())
        return DecodingResults(
            command=command,
            versions=versions,
            model=_build_model_identity(self.generator),
            scoring_model=_build_model_identity(self.scorer) if self.scorer else None,
            settings=request.describe_settings(),
            signatures=ngram_metrics.get_sacrebleu_signatures(),
            prompts=request.prompts,
            baseline=request.baseline,
            metrics=strategy_statistics.list_metrics(ratios_by_strategy),
            estimates={
                name: strategy_statistics.estimate_metrics(ratios) for name, ratios in ratios_by_strategy.items()
            },
            human=strategy_statistics.estimate_metrics(
                {name: human_ratios[name] for name in strategy_statistics.HUMAN_METRICS if name in human_ratios}
            ),
            pairs=strategy_statistics.compare_strategies(ratios_by_strategy, request.baseline),
            sweep=SweepResults(samples=request.num_sweep_samples, points=self._estimate_sweep(sweep_points)),
            traces=self._build_traces(),
            limit_checks=self._check_limit_invariants(),
            notes=self._build_notes(strategies, sample_counts),
        )

    # -- generation

    def _generate_missing_samples(self, strategies_and_counts: dict[str, tuple[Strategy, int]]) -> None:
        """Continue every prompt with every strategy, except where all samples exist.

        `strategies_and_counts` maps a strategy name to the strategy and its number of samples per prompt.
        """
        missing_prompt_indices = {
            name: [i for i in range(len(self.request.prompts)) if not self.store.has_samples(strategy, i, count)]
            for name, (strategy, count) in strategies_and_counts.items()
        }
        total = sum(len(indices) * strategies_and_counts[name][1] for name, indices in missing_prompt_indices.items())
        progress = ProgressReporter("generating samples", total, self.on_progress)
        for name, indices in missing_prompt_indices.items():
            strategy, count = strategies_and_counts[name]
            prompts_per_chunk = max(1, CHUNK_SIZE // count) if strategy.mode == "sample" else CHUNK_SIZE // 2
            for start in range(0, len(indices), prompts_per_chunk):
                chunk = indices[start : start + prompts_per_chunk]
                self._generate_samples(name, strategy, chunk, count)
                progress.step(count * len(chunk))

    def _continue_prompts(
        self, strategy: Strategy, prompt_indices: Sequence[int], num_samples: int = 1
    ) -> list[Continuation]:
        """Return `num_samples` continuations for each prompt."""
        request = self.request
        prompt_texts = [request.prompts[index].text for index in prompt_indices]
        # The report mentions texts that exceed the context once, instead of issuing a warning per chunk.
        with warnings.catch_warnings(action="ignore", category=ContextOverflowWarning):
            return generate(
                self.generator.bundle,
                prompt_texts,
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
        request, num_repeats = self.request, 1 if strategy.mode == "sample" else num_samples
        prompt_texts = [request.prompts[index].text for index in prompt_indices]
        continuations = self._continue_prompts(strategy, prompt_indices, num_samples // num_repeats)
        encoded_prompts = [
            encode_prompt(self.generator.tokenizer, prompt_texts[continuation.prompt]) for continuation in continuations
        ]
        losses = likelihood.compute_continuation_losses(
            self.generator.model, encoded_prompts, [continuation.ids for continuation in continuations]
        )
        for continuation, loss in zip(continuations, losses, strict=True):
            prompt_index = prompt_indices[continuation.prompt]
            for sample_index in [continuation.sample] if num_repeats == 1 else range(num_samples):
                self.store.add_sample(
                    {
                        "key": self.store.compute_sample_key(strategy, prompt_index, sample_index),
                        "model": self.generator.digest,
                        "strategy": name,
                        "seed": request.seed,
                        "max_new_tokens": request.max_new_tokens,
                        "prompt": prompt_texts[continuation.prompt],
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

    def _iter_generated_texts(
        self, strategies: dict[str, Strategy], sample_counts: dict[str, int]
    ) -> Iterator[tuple[int, str]]:
        """Yield (prompt index, text) for every generated sample."""
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
            scores = likelihood.compute_text_likelihoods(
                self.scorer.model,
                self.scorer.tokenizer,
                [self.request.prompts[prompt_index].text for prompt_index, _ in chunk],
                [text for _, text in chunk],
            )
            for (prompt_index, text), score in zip(chunk, scores, strict=True):
                store.add_score(prompt_index, text, score)
            progress.step(len(chunk))

    # -- metrics

    def _collect_continuations(self, strategy: Strategy, num_samples: int) -> list[ScoredContinuation]:
        """Return all of a strategy's samples with their likelihoods."""
        continuations = []
        for prompt_index in range(len(self.request.prompts)):
            for sample_index in range(num_samples):
                record = self.store.get_sample(strategy, prompt_index, sample_index)
                continuations.append(
                    ScoredContinuation(
                        prompt_index,
                        sample_index,
                        tuple(record["ids"]),
                        record["text"],
                        Likelihood(record["loss"], record["tokens"], record["bytes"]),
                        self.store.get_score(prompt_index, record["text"]),
                    )
                )
        return continuations

    def _compute_strategy_ratios(self, name: str, strategy: Strategy, num_samples: int) -> dict[str, PromptRatios]:
        """Return the ratios for every metric over a strategy's samples."""
        self.on_progress(ProgressUpdate(f"computing metrics of {name}", 0, 0))
        return self._compute_prompt_ratios(self._collect_continuations(strategy, num_samples))

    def _compute_prompt_ratios(self, continuations: Sequence[ScoredContinuation]) -> dict[str, PromptRatios]:
        """Return the ratios for every metric, given the human continuations of the prompts."""
        return strategy_statistics.compute_prompt_ratios(
            continuations, len(self.request.prompts), [text for _, text in self._human_continuations]
        )

    @cached_property
    def _human_continuations(self) -> list[tuple[list[int], str | None]]:
        """Token ids and text of each human continuation, truncated to `max_new_tokens`; the text is None if unknown."""
        human_continuations: list[tuple[list[int], str | None]] = []
        for prompt in self.request.prompts:
            if not prompt.continuation:
                human_continuations.append(([], None))
                continue
            separator = "" if not prompt.text or prompt.text[-1].isspace() else " "
            context_ids, continuation_ids = encode_prompt_and_continuation(
                self.generator.tokenizer, prompt.text, separator + prompt.continuation
            )
            continuation_ids = continuation_ids[: self.request.max_new_tokens]
            text = decode_continuation(self.generator.tokenizer, context_ids, continuation_ids)
            human_continuations.append((continuation_ids, text))
        return human_continuations

    def _score_human_continuations(self) -> list[ScoredContinuation]:
        """Return the human continuations in the same form as generated ones, one per prompt."""
        known_continuations = [
            (index, ids, text) for index, (ids, text) in enumerate(self._human_continuations) if text is not None
        ]
        losses = likelihood.compute_continuation_losses(
            self.generator.model,
            [
                encode_prompt(self.generator.tokenizer, self.request.prompts[index].text)
                for index, _, _ in known_continuations
            ],
            [ids for _, ids, _ in known_continuations],
        )
        continuations = []
        for (index, ids, text), loss in zip(known_continuations, losses, strict=True):
            model_likelihood = Likelihood(loss, len(ids), len(text.encode()))
            scoring_likelihood = self.store.get_score(index, text)
            continuations.append(ScoredContinuation(index, 0, tuple(ids), text, model_likelihood, scoring_likelihood))
        return continuations

    # -- sweep

    def _count_sweep_only_samples(self, points: Sequence[SweepPoint]) -> dict[str, int]:
        """Return the number of samples for each sweep strategy that is not among the compared ones."""
        compared_strategies = {str(strategy) for strategy in self.request.strategies.values()}
        return {
            point.name: self.request.num_sweep_samples
            for point in points
            if str(point.strategy) not in compared_strategies
        }

    def _estimate_sweep(self, points: Sequence[SweepPoint]) -> list[SweepPointResult]:
        """Return the estimates at every point of the sweep. Points that share a strategy are computed once."""
        estimates = {}
        for point in points:
            if point.name not in estimates:
                ratios = self._compute_strategy_ratios(point.name, point.strategy, self.request.num_sweep_samples)
                estimates[point.name] = strategy_statistics.estimate_metrics(ratios)
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
                    self.generator.bundle,
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
                    f"{self.folder / SAMPLES_FILE}: {name} now generates a different text than when the file was "
                    "written (a different version of the package?); choose another --out"
                )
            note = explain_missing_distribution(strategy)
            trace_steps = [TraceStep.model_validate(step) for step in steps]
            traces.append(StrategyTrace(strategy=name, prompt=0, text=sample["text"], note=note, steps=trace_steps))
        return traces

    def _check_limit_invariants(self) -> list[LimitCheck]:
        """Check on this model and its prompts that strategies agree in their limits."""
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
        """Return the notes of the report: warnings about long texts and unknown tokens."""
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
            keys = {
                self.store.compute_score_key(*pair) for pair in self._iter_generated_texts(strategies, sample_counts)
            }
            scores = [self.store.scores[key] for key in keys]
            num_unknown, num_tokens = (sum(score[name] for score in scores) for name in ("unknown", "tokens"))
            if num_unknown:
                notes.append(
                    f"{100 * num_unknown / num_tokens:.1f} % of the tokens in these texts are unknown to the second "
                    "model. Unknown tokens are easy to predict, so its bits per byte are too low for rare words."
                )
        return notes


def _build_model_identity(model: FingerprintedModel) -> ModelIdentity:
    """Return the name and digest of a model, as recorded in the results."""
    return ModelIdentity(name=model.name, digest=model.digest)
