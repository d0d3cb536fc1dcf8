"""docs/performance.md: the figures of the last run on a quiet machine, with the words around them."""

from __future__ import annotations

from typing import Any

from . import words
from .findings import Finding, Results

PICTURE = "pictures/performance.svg"

INTRODUCTION = """\
# Performance

Answers come from many small trainings, so what counts is trials per hour at equal mathematics. `make bench` measures
it, and this page is what it wrote last (`make bench ARGS=--docs`). Figures are ratios within one run: contestants take
turns several times and the best turn of each counts, because machines are noisy. On a machine that is busy with
something else they mean little; the load before each family stands below.

A peer is given what makes it equal: our first weights, our batches, the same optimizer (Adam, fused), the same
feed-forward, untied output, the same biases as far as it has them. What still differs is said in a table, and so is
how far its losses are from ours. Both sides find the corpus tokenised on disk: the peer as ready batches, ours in its
cache. The peer keeps nothing, while `h2h run` is measured with all that it does: workers, checkpoints, audits, run
folders and the report.
"""

TRAINING = """\
The base decoder: width 64, 4 layers, 2 heads, context 32, batch 16, feed-forward 100. Whole commands, from start to
end, 8 seeds of 500 steps with scoring every 100. *As people run it*: the peer trains seed after seed in one process
with all threads. *In our layout*: the peer has a process a core, with one thread each, as our workers do. Ours is the
same in both.
"""
CLASSIFIER = """\
The base classifier: width 64, 4 layers, 2 heads, context 32, feed-forward 256, mean over what is not padding; 15
epochs, 8 seeds, scored after each epoch. The layouts are those of the decoder.
"""
STEP = """\
A step's work is 6 x tokens x parameters without the embedding table. The limit is a product of two square matrices of
2,048 in float32 on one thread, measured in turn with the steps. Width 64 is the base decoder; width 256 has context 64
and a feed-forward of 1,024.
"""
MEMORY = """\
What a step adds at its highest point to what the process held before it, each side in a process of its own; the model
and the optimizer's moments are there already. The base decoder with context 256. Loss and gradients are computed chunk
by chunk, and the logits are never there as a whole.
"""
WINDOW = """\
Attention in blocks is linear in the context. Full attention is torch's own kernel without any mask; its memory is
linear too, so only times are compared.
"""
STARTUP = """\
What is paid before the first step. Verbs that only read and show import no torch.
"""
TOKENISING = """\
Text is tokenised once to disk and mapped from there. Both sides have the same tokenizer, 8,000 byte pairs; the
library's figure is for encoding alone, with nothing written.
"""
DECODING = """\
Tokens written a second, one thread, against transformers' `generate` with its cache.
"""
FAMILIES = {
    "training": ("Training a decoder", TRAINING),
    "classifier": ("Training a classifier", CLASSIFIER),
    "step": ("The step and the machine's limit", STEP),
    "memory": ("Memory of a large vocabulary", MEMORY),
    "window": ("Windows and long contexts", WINDOW),
    "startup": ("Start-up", STARTUP),
    "tokenising": ("Large corpora", TOKENISING),
    "decoding": ("Decoding", DECODING),
}

TRIED = """\
## What was tried

Milliseconds of one step on one thread, before and after, from alternating turns in one run: the ratios count. But for
the last row they are from a busy machine with a limit of 201 GFLOP/s, where the base decoder (width 64) took 16 to 20
ms a step and width 256, the second row of the table of shares, about 210.

| kept | width 64 | width 256 |
|---|---|---|
| Adam's kernel called once, without what torch.optim does around it | 1.0 to 1.3, now 0.7 to 0.8 | 8.3, now 7.6 |
| one generator is seeded, not those of devices that are not there | 0.1 to 0.2, now 0.003 | the same |
| loss: the mean folded into the sums, the first chunk written and not added | 9.1, now 8.8 | 53.0, now 51.6 |
| memory that is freed is kept in the process | 20.1, now 19.0 | within the noise |
| exp(bias) into the small matrices (the whole step) | 15.7 to 20.3, now 15.7 to 18.9 | 218, now 212 |
| a chunk's logits word by word, not prediction by prediction (whole step, limit 95 GFLOP/s) | 30.7, now 30.0 | - |

Whether the C library gives freed memory back is chance: the same step took 1,400 fresh pages in one process and one
in the next (width 256: 1,500 to 1,800). A worker therefore tells it not to.

What did not help:

- **ReLU in place.** The output of a linear layer is a view, and autograd copies when a view is written to: backward
  3.3 to 3.7 ms at width 64, 92 to 101 at width 256.
- **Queries, keys and values by one product** of weights put side by side at each step: 0.9 % at width 64, 1.7 % at
  width 256, within the noise of the measurement. The three stay what they are.
- **Attention by plain products at short contexts**: forward and backward 0.40 to 0.43 ms a layer against 0.29 of the
  fused kernel at context 32, 2.3 to 2.4 against 2.1 at context 64 with heads of 128.
- **Other sizes of the loss's chunks**, 64 to 512 predictions: 8.8 to 9.1 ms at width 64; at width 256 64 is slower
  (57 against 51.6), the rest differ less than two runs do.
- **The bias as one more column of the products** (65 instead of 64): the first product takes as long, the other two a
  fifth to a third longer. **The bias added by the product itself** (`addmm`): 9.3 ms instead of 8.8.
- **Large pages for the C library's memory**: within 2 % of keeping the memory.
- **torch.compile** of the layers, as one or each by itself (limit 95 GFLOP/s, beside other work): 22 to 65 s of
  compiling, and then the best step took 30.1 or 31.2 ms instead of 28.1 at width 64, 571 instead of 448 at width 256.
  The first of these broke the layers into several graphs. As it stands no run on a processor is long enough to earn it
  back, and it is not offered.
- **A backward pass of the whole model written by hand** reached a larger share of the limit and was not kept: parts
  must stay parts.

Processors differ in what they have to spare: where products are half as quick, everything else is half as large a share
of a step, and so is what can be gained on it. What is left at width 64, on the machine with 201 GFLOP/s: the three
products over the vocabulary take 6.7 of the loss's 8.8 ms and run at 80 to 95 % of the limit; the layers' own products
are small enough for the time between operations to count. At width 256 products run at 165 to 200 of 201 GFLOP/s;
attention, the optimizer, ReLU and norms share most of the rest. A worker's start is torch (about 1.2 s) and our own
imports (0.8 s); it begins while the command still checks what it was asked. Counting a model's operations on the meta
device imports torch's compiler (1.1 s): done once, by the command, and told to the workers. Earlier attempts, for the
loss, the draw of a token and attention, are in [the log](log.md).
"""


def page(found: dict[str, Results]) -> str:
    """The whole page."""
    pieces = [INTRODUCTION]
    promises = [one for results in found.values() for one in results.findings if one.holds is not None]
    if promises:
        kept = sum(bool(one.holds) for one in promises)
        said = f"Of {len(promises)} promises, {kept} hold."
        pieces.append(f"![What was promised and what was measured]({PICTURE})\n\n{said}\n")
    for family, (title, text) in FAMILIES.items():
        if family in found:
            pieces.append(_section(title, text, found[family]))
    pieces.append(TRIED)
    return "\n".join(pieces)


def _section(title: str, text: str, results: Results) -> str:
    pieces = [f"## {title}\n\n{text}"]
    if results.findings:
        pieces.append(words.markdown(words.COLUMNS, [_cells(one) for one in results.findings]) + "\n")
    for table in results.tables:
        note = f"\n\n{table.note}" if table.note else ""
        pieces.append(f"### {table.title}\n\n{words.markdown(table.columns, table.rows)}{note}\n")
    return "\n".join([*pieces, _measured_on(results.about) + "\n"])


def _cells(finding: Finding) -> list[str]:
    *rest, holds = words.cells(finding)
    return [*rest, f"**{holds}**" if holds == "NO" else holds]


def _measured_on(about: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    machine = f"{about['processor']}, {about['cores']} cores, {about['memory_gb']} GB, {about['system']}"
    short = " A short run, whose figures mean nothing." if about.get("short") else ""
    rounds = "" if about.get("rounds") is None else f", {about['rounds']} rounds"
    return (
        f"Measured on {about['day']}{rounds}: {machine}; Python {about['python']}, {versions}. "
        f"Corpus: {about['corpus']}. Load before it began: {about['load']}.{short}"
    )
