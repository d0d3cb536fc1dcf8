"""Run small experiments in this process, without workers: corpora, experiment files and findings."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headtohead.config.trial_settings import build_trial
from headtohead.experiment import loading, schemas
from headtohead.experiment.journal import Journal
from headtohead.findings import compute
from headtohead.runner.preflight import check_runnable
from headtohead.runner.run_experiment import create_folder_with_corpus
from headtohead.trials.trial import run_trial

NETWORKS = Path(__file__).parent / "networks.py"


def draw_rows(count: int, length: int = 24, seed: int = 0, num_words: int = 30) -> list[str]:
    """Return distinct rows in which each word depends on the preceding one."""
    draw = random.Random(seed)
    rows: dict[str, None] = {}
    while len(rows) < count:
        ids = [draw.randrange(num_words)]
        while len(ids) < length:
            ids.append((3 * ids[-1] + draw.choice((1, 1, 2, 7, 11))) % num_words)
        rows[" ".join(f"w{i}" for i in ids)] = None
    return list(rows)


def write_corpus(folder: Path, **splits: Sequence[str]) -> Path:
    """Write one text file per split; by default 200 training, 20 validation and 40 test rows."""
    rows = draw_rows(260)
    splits = {"train": rows[:200], "validation": rows[200:220], "test": rows[220:], **splits}
    folder.mkdir(parents=True)
    for name, lines in splits.items():
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def compute_findings(folder: Path, corpus: Path, seeds: int = 2, **settings: Any) -> schemas.Findings:
    """Train every variant with every seed in this process, and return the findings."""
    raw = {
        "question": "Which mistake is named?",
        "task": "language-model",
        "seeds": seeds,
        "data": {"source": str(corpus), "rows": "sentences", "allow_overlap": True},
        "model": {"module": f"{NETWORKS}:Decoder", "context": 24},
        "training": {"budget": "20 steps", "batch_size": 8, "optimizer": {"kind": "adamw", "lr": 0.02}},
        **settings,
    }
    experiment = loading.build_experiment(raw, "planted")
    check_runnable(experiment)
    runs = create_folder_with_corpus(folder, experiment, command=["h2h"], resume=False)
    for variant in experiment.names:
        for seed in range(seeds):
            run = runs.run(variant, seed)
            run_trial(build_trial(experiment, variant, seed), run.folder, device="cpu")
            Journal(folder).record_finished(variant, seed, run.folder)
    return compute.compute_findings(runs)
