"""Render docs/performance.md: the results of the last run on a quiet machine, with explanations."""

from __future__ import annotations

from typing import Any

from . import formatting
from .measurements import BenchmarkResults, Measurement

CHART_PATH = "pictures/performance.svg"

INTRODUCTION = """\
# Performance

Experiments consist of many small trainings, so the figure of merit is trials per hour at equal mathematics.
`make bench` measures it and writes this page (`make bench ARGS=--docs`). All results are ratios within one run:
contestants run alternately for several rounds and the best round of each counts, because machines are noisy. On a
machine that runs other work the ratios mean little; the load before each benchmark is stated below.

A peer gets our initial weights, our batches, the same optimizer (Adam, fused), the same feed-forward layer, an untied
output layer and the same biases as far as it has them. A table lists the remaining differences and the differences of
the losses. Both sides find the corpus tokenized on disk: the peer as ready batches, ours in its cache. The peer saves
nothing, while `h2h run` is measured with everything it does: workers, checkpoints, audits, run folders and the report.
"""
TRAINING = """\
The base decoder: width 64, 4 layers, 2 heads, context 32, batch 16, feed-forward 100. Complete commands with 8 seeds of
500 steps and an evaluation every 100 steps. In the *usual layout* the peer trains one seed after another in one process
with all threads. In *our layout* the peer has one process per core with one thread each, as our workers do. Our command
is the same in both.
"""
CLASSIFIER = """\
The base classifier: width 64, 4 layers, 2 heads, context 32, feed-forward 256, mean pooling over tokens that are not
padding; 15 epochs, 8 seeds, evaluated after each epoch. The layouts are those of the decoder.
"""
FINETUNING = """\
MiniLM (22 million parameters) with a new head on labeled rows: 2 seeds of 100 steps of 32 rows of similar length, Adam
at a constant learning rate, evaluated every 50 steps. Both sides run transformers' encoder.
"""
DISTILLATION = """\
The base decoder learns from the logits of a decoder of twice its width, on one thread. Ours reads the teacher's 50 most
likely tokens at every position from a cache, which all seeds and variants share. The peers run the teacher at every
step and compare all probabilities. With all probabilities of the teacher, the losses are equal.
"""
NANOGPT = """\
nanoGPT's configuration for the CPU (4 layers, width 128, context 64, 12 rows, characters), with AdamW, weight decay for
matrices and gradient clipping, against the same model and loop written in plain PyTorch, on one thread.
"""
JAX = """\
The base decoder, and one of width 256, against jax with one jitted function per step: the same weights, batches, loss
and Adam. Both processes are pinned to one core; compilation is not measured.
"""
LARGE = """\
A decoder of 10 million parameters (width 256, 8 layers, context 256, 8,000 byte pairs, 32 rows per step) on one thread.
Estimates are those of `h2h plan`, as a factor in either direction from what a trial takes.
"""
STEP = """\
A step counts as 6 x tokens x parameters FLOPs, without the embedding table. The peak is that of a product of two 2,048
x 2,048 matrices in float32 on one thread, measured alternately with the steps. Width 64 is the base decoder; width 256
has a feed-forward layer of 1,024.
"""
MEMORY = """\
The memory that a step adds to what the process held before, each contestant in its own process; the model and the
moments of the optimizer are already allocated. The base decoder with context 256. Loss and gradients are computed in
chunks, so the logits never exist as a whole.
"""
WINDOW = """\
Attention in blocks is linear in the context. Full attention is torch's own kernel without a mask; its memory is linear
too, so only times are compared.
"""
STARTUP = """\
The time before the first step. Commands that only read and print do not import torch. A worker starts while the command
itself imports torch, so the two take little longer than one.
"""
TOKENIZATION = """\
Text is tokenized once to disk and memory-mapped from there. Both sides use the same BPE tokenizer with 8,000 tokens;
the library's rate is for encoding alone, with nothing written.
"""
DECODING = """\
Generated tokens per second on one thread, against transformers' `generate` with its cache.
"""
SECTIONS = {
    "training": ("Training a decoder", TRAINING),
    "classifier": ("Training a classifier", CLASSIFIER),
    "finetuning": ("Fine-tuning", FINETUNING),
    "distillation": ("Distillation", DISTILLATION),
    "step": ("Training step and peak of the machine", STEP),
    "nanogpt": ("A step of nanoGPT", NANOGPT),
    "jax": ("A step in jax", JAX),
    "large": ("Ten million parameters", LARGE),
    "memory": ("Memory of a large vocabulary", MEMORY),
    "window": ("Windows and long contexts", WINDOW),
    "startup": ("Start-up", STARTUP),
    "tokenization": ("Large corpora", TOKENIZATION),
    "decoding": ("Decoding", DECODING),
}

ATTEMPTS = """\
## What was tried

Milliseconds per step on one thread, before and after each change, measured alternately in one run: only the ratios
matter. Except for the last row they were measured on a busy machine with a peak of 201 GFLOP/s, where the base decoder
(width 64) took 16 to 20 ms per step and width 256 about 210 ms.

| kept | width 64 | width 256 |
|---|---|---|
| call the Adam kernel directly instead of through torch.optim | 1.0 to 1.3, now 0.7 to 0.8 | 8.3, now 7.6 |
| seed one generator instead of those of all devices | 0.1 to 0.2, now 0.003 | the same |
| loss: fold the mean into the sums; write the first chunk instead of adding it | 9.1, now 8.8 | 53.0, now 51.6 |
| keep freed memory in the process | 20.1, now 19.0 | within the noise |
| apply exp(bias) to the small matrices (whole step) | 15.7 to 20.3, now 15.7 to 18.9 | 218, now 212 |
| store the logits of a chunk by token instead of by prediction (whole step, peak 95 GFLOP/s) | 30.7, now 30.0 | - |

Whether the C library returns freed memory to the system varies between processes: the same step used 1,400 fresh pages
in one process and one in the next (width 256: 1,500 to 1,800). Workers therefore disable it.

Without success:

- **ReLU in place.** The output of a linear layer is a view, and autograd copies a view that is written to: backward
  3.3 to 3.7 ms at width 64, 92 to 101 ms at width 256.
- **One product for queries, keys and values** with weights concatenated at each step: 0.9 % at width 64, 1.7 % at width
  256, within the noise.
- **Attention by plain products at short contexts**: forward and backward 0.40 to 0.43 ms per layer instead of 0.29 with
  the fused kernel at context 32, 2.3 to 2.4 instead of 2.1 at context 64 with heads of 128.
- **Other chunk sizes of the loss**, 64 to 512 predictions: 8.8 to 9.1 ms at width 64; at width 256, 64 is slower (57
  instead of 51.6), and the others differ less than two runs do.
- **The bias as an additional column of the products** (65 instead of 64): the first product takes as long, the other
  two 20 to 33 % longer. **The bias added by `addmm`**: 9.3 ms instead of 8.8.
- **Huge pages for the memory of the C library**: within 2 % of keeping the memory.
- **torch.compile** of all layers together or of each layer (peak 95 GFLOP/s, on a busy machine): 22 to 65 s of
  compilation, after which the best step took 30.1 or 31.2 ms instead of 28.1 at width 64, 571 instead of 448 at width
  256. The first variant split the layers into several graphs. No run on a CPU is long enough to amortize it.
- **Training the seeds of a variant as one batched model** and **a handwritten backward pass per layer**: see
  [the log](log.md).
- **A handwritten backward pass of the whole model** reached a larger fraction of the peak. It was dropped because it
  cannot be composed of parts.

Gains depend on the machine: where products are half as fast, everything else is half as large a fraction of a step. On
the machine with 201 GFLOP/s the three products over the vocabulary take 6.7 of the 8.8 ms of the loss at width 64 and
run at 80 to 95 % of the peak; the products of the layers are so small that the time between operations matters. At
width 256, products run at 165 to 200 of 201 GFLOP/s; attention, the optimizer, ReLU and norms take most of the rest. A
worker starts by importing torch (about 1.2 s) and our own modules (0.8 s), while the command still validates its
arguments. Counting the FLOPs of a model on the meta device imports torch's compiler (1.1 s); the command does it once
and passes the result to the workers. [The log](log.md) lists earlier attempts for the loss, sampling and attention.
"""


def render_page(results: dict[str, BenchmarkResults]) -> str:
    """Return the whole page."""
    sections = [INTRODUCTION]
    targets = [
        measurement.is_met
        for benchmark_results in results.values()
        for measurement in benchmark_results.measurements
        if measurement.is_met is not None
    ]
    if targets:
        summary = f"{sum(targets)} of {len(targets)} targets are met."
        sections.append(f"![Targets and results]({CHART_PATH})\n\n{summary}\n")
    for benchmark, (title, text) in SECTIONS.items():
        if benchmark in results:
            sections.append(_render_section(title, text, results[benchmark]))
    sections.append(ATTEMPTS)
    return "\n".join(sections)


def _render_section(title: str, text: str, results: BenchmarkResults) -> str:
    parts = [f"## {title}\n\n{text}"]
    if results.measurements:
        rows = [_render_row(measurement) for measurement in results.measurements]
        parts.append(formatting.render_markdown_table(formatting.MEASUREMENT_COLUMNS, rows) + "\n")
    for table in results.tables:
        note = f"\n\n{table.note}" if table.note else ""
        parts.append(f"### {table.title}\n\n{formatting.render_markdown_table(table.columns, table.rows)}{note}\n")
    return "\n".join([*parts, _describe_environment(results.environment) + "\n"])


def _render_row(measurement: Measurement) -> list[str]:
    *cells, is_met = formatting.format_cells(measurement)
    return [*cells, f"**{is_met}**" if is_met == "NO" else is_met]


def _describe_environment(environment: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    cores, memory = f"{environment['cores']} cores", f"{environment['memory_gb']} GB"
    machine = f"{environment['processor']}, {cores}, {memory}, {environment['system']}"
    rounds = "" if environment.get("rounds") is None else f", {environment['rounds']} rounds"
    warning = " This was a short run, whose numbers are meaningless." if environment.get("short") else ""
    return (
        f"Measured on {environment['day']}{rounds}: {machine}; Python {environment['python']}, {versions}. "
        f"Corpus: {environment['corpus']}. Load before the start: {environment['load']}.{warning}"
    )
