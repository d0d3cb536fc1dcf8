"""Mistakes that once led to a wrong verdict: each is trained, scored and judged as an experiment would."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from headtohead.experiment import loading
from headtohead.runner.run_experiment import run_experiment

from .collection import FUTURE, STATE

NETWORKS = Path(__file__).parent / "networks.py"
ROWS = {
    "ShiftWithMaskedPadding": FUTURE,
    "LeakAfterCommonWords": FUTURE,
    "LeakAfterPosition40": FUTURE,
    "LeakBehindBatchNorm": FUTURE,
    "MemoryFilledWhileScoring": STATE,
    "LeakWithInPlaceProduct": FUTURE,
    "LeakWithoutBatchesOfOne": FUTURE,
}
"""network: the words that the verdict must contain"""


def write_text(folder: Path) -> Path:
    """Write rows in which each word depends on the one before, with rare words in between. No row repeats."""
    draw = random.Random(0)
    folder.mkdir()
    for name, rows in (("train", 400), ("validation", 20), ("test", 60)):
        lines = []
        for _ in range(rows):
            ids = [draw.randrange(30)]
            for _ in range(46):
                ids.append((3 * ids[-1] + draw.choice((1, 1, 2, 7, 11))) % 30)
            words = [f"w{i}" for i in ids]
            for _ in range(6):
                words[draw.randrange(len(words))] = f"rare{draw.randrange(1500)}"
            lines.append(" ".join(words))
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The verdicts of one experiment in which every variant is a network with a mistake."""
    folder = tmp_path_factory.mktemp("planted")
    variants = {name.lower(): {"model": {"module": f"{NETWORKS}:{name}"}} for name in ROWS}
    experiment = loading.build_experiment(
        {
            "question": "Which mistake is caught?",
            "task": "language-model",
            "seeds": 3,
            "data": {"source": str(write_text(folder / "text")), "rows": "sentences", "monitor": ["test"]},
            "model": {"module": f"{NETWORKS}:Decoder", "context": 48},
            "training": {"steps": 60, "batch_size": 8, "optimizer": {"kind": "adamw", "lr": 0.02}},
            "variants": variants,
        },
        "planted",
    )
    outcome = run_experiment(experiment, folder / "runs", num_workers=1)
    assert outcome.findings is not None and not outcome.failed_jobs
    return {verdict.variant: verdict for verdict in outcome.findings.verdicts}


@pytest.mark.parametrize("row", ROWS)
def test_mistake_is_named_instead_of_rewarded(verdicts: dict[str, Any], row: str) -> None:
    verdict = verdicts[row.lower()]
    assert verdict.outcome == "not comparable", verdict.summary
    assert ROWS[row] in verdict.summary
