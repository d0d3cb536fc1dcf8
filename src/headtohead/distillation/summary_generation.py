"""Generate summaries with a student or teacher, time the generation and score each summary.

A line of summaries.jsonl holds one held-out document: the summary, its stop reason, ROUGE against all reference
summaries, its length in words and the number of n-grams copied from the document.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import Any

from headtohead.data.sources.summarization import Document
from headtohead.experiment.schemas import SummaryLine
from headtohead.generation.generate import generate
from headtohead.generation.session import ContextOverflowWarning
from headtohead.generation.strategies import Strategy
from headtohead.text_metrics import rouge
from headtohead.text_metrics.ngram_metrics import COPIED_NGRAM_SIZES, compute_copied_ngrams, split_words
from headtohead.training.hardware import devices

SUMMARIES_FILE = "summaries.jsonl"
GENERATION_BATCH_SIZE = 16
"""summaries that a student generates per batch"""
NUM_TIMED_DOCUMENTS = 5
"""documents used to measure the latency per summary"""


def generate_summaries(
    model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], decoding_strategy: Strategy, max_new_tokens: int
) -> list[Any]:
    """Generate one summary per prompt, in batches; return them in prompt order."""
    with warnings.catch_warnings(action="ignore", category=ContextOverflowWarning):
        return generate(
            model,
            [list(prompt_ids) for prompt_ids in prompts],
            decoding_strategy,
            max_new_tokens=max_new_tokens,
            tokenizer=tokenizer,
            batch_size=GENERATION_BATCH_SIZE,
        )


def measure_seconds_per_summary(
    model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], decoding_strategy: Strategy, max_new_tokens: int
) -> float:
    """Return the mean generation latency in seconds, for one document at a time on one thread."""
    timed_prompts = prompts[:NUM_TIMED_DOCUMENTS]
    num_threads_before = devices.set_num_threads(1)
    start_time = time.perf_counter()
    for prompt_ids in timed_prompts:
        generate(model, [list(prompt_ids)], decoding_strategy, max_new_tokens=max_new_tokens, tokenizer=tokenizer)
    devices.set_num_threads(num_threads_before)
    return (time.perf_counter() - start_time) / len(timed_prompts)


def build_summary_line(document: Document, generated_text: str, stop_reason: str) -> SummaryLine:
    """Return the line of summaries.jsonl for a generated summary: its ROUGE scores, length and copied n-grams."""
    summary = generated_text.strip()
    copied_fractions = {f"copied-{n}": compute_copied_ngrams(summary, document.text, n) for n in COPIED_NGRAM_SIZES}
    return SummaryLine(
        id=document.id,
        text=summary,
        stop_reason=stop_reason,
        rouge=rouge.compute_rouge(summary, document.summaries),
        length=len(split_words(summary)),
        copied={name: (fraction.total, fraction.denominator) for name, fraction in copied_fractions.items()},
    )
