"""Mistakes that once led to a wrong verdict: each is trained, scored and judged as in an experiment.

Before the scoring audits, these variants "helped" by 37 to 91 %. Only LeakAfterPosition40 had too few late tokens in
these texts ("cannot tell", 30 % lower); with texts of 80 words it "helped" by 52 %.
"""

from __future__ import annotations

import random

import pytest

from headtohead.verdict.record import Verdict

from .collection import FUTURE, STATE
from .run import NETWORKS, compute_findings, draw_rows, write_corpus

NUM_WORDS = 64
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


def draw_text(count: int, seed: int) -> list[str]:
    """Return distinct rows in which each word depends on the preceding one, with some rare words."""
    draw = random.Random(seed)
    rows = [row.split() for row in draw_rows(count, NUM_WORDS, seed)]
    for words in rows:
        for position in draw.sample(range(NUM_WORDS), NUM_WORDS // 8):
            words[position] = f"rare{draw.randrange(1_500)}"
    return [" ".join(words) for words in rows]


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verdict]:
    """Return the verdicts of one experiment in which every variant is a network with a mistake."""
    folder = tmp_path_factory.mktemp("planted")
    splits = {"train": draw_text(150, 0), "validation": draw_text(20, 1), "test": draw_text(40, 2)}
    corpus = write_corpus(folder / "text", **splits)
    findings = compute_findings(
        folder / "runs",
        corpus,
        data={"source": str(corpus), "rows": "sentences", "allow_overlap": True, "monitor": ["test"]},
        model={"module": f"{NETWORKS}:Decoder", "context": NUM_WORDS + 1},
        training={"budget": "60 steps", "batch_size": 8, "optimizer": {"kind": "adamw", "lr": 0.02}},
        variants={name.lower(): {"model": {"module": f"{NETWORKS}:{name}"}} for name in ROWS},
        seeds=3,
    )
    return {verdict.variant: verdict for verdict in findings.verdicts}


@pytest.mark.parametrize("row", ROWS)
def test_mistake_is_reported_instead_of_rewarded(verdicts: dict[str, Verdict], row: str) -> None:
    verdict = verdicts[row.lower()]
    assert verdict.outcome == "not comparable", verdict.summary
    assert ROWS[row] in verdict.summary
