"""Small findings, made in place: real verdicts on drawn scores, and everything else that a report shows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from headtohead.atomic_io import write_json
from headtohead.verdict.compare import compare_scores
from headtohead.verdict.scores import Scores

from .typed import typed

HOSTILE = "</script><b>bold</b>&\"'"
TOKENS = ["The", "<b>", "people", "."]
Findings = dict[str, Any]


def audit(name: str, passed: bool | None, *, is_blocking: bool = True) -> dict[str, Any]:
    return {
        "name": name,
        "passed": passed,
        "is_blocking": is_blocking,
        "procedure": f"procedure of {name}",
        "observation": f"observation of {name}",
        "interpretation": f"interpretation of {name}",
        "failure_reason": name,
    }


def build(
    variants: dict[str, float] | None = None, *, metric: str = "perplexity", failed: dict[str, list[str]] | None = None
) -> Findings:
    """Findings of an experiment whose variants differ from the baseline by so much, in loss or in accuracy."""
    variants = {"alibi": -0.08, HOSTILE: 0.002} if variants is None else variants
    rng = np.random.default_rng(7)
    seeds, rows = (0, 1, 2), 40
    noise = rng.normal(0, 0.01, (3, rows))

    def scores(shift: float) -> Scores:
        if metric == "accuracy":
            right = (rng.random((3, rows)) < 0.7 + shift).astype(float)
            return Scores(seeds, right, np.ones(rows))
        loss = 6.0 + noise + shift + rng.normal(0, 0.002, (3, rows))
        return Scores(seeds, 10 * loss, np.full(rows, 10.0))

    every = {"baseline": scores(0.0), **{name: scores(shift) for name, shift in variants.items()}}
    others = {name: found for name, found in every.items() if name != "baseline"}
    verdicts = compare_scores(every["baseline"], others, metric=metric, equivalence_margin=0.01, withheld=failed or {})

    def shown(value: float) -> float:
        return float(np.exp(value)) if metric == "perplexity" else float(value)

    results = {
        name: {"test": [[s, shown(v)] for s, v in zip(seeds, found.compute_seed_means(), strict=True)]}
        for name, found in every.items()
    }
    curves = {
        name: {
            "test": {
                str(seed): [[step, end * (1 + 8 / (1 + step))] for step in (0, 100, 200, 300, 400)]
                for seed, end in of["test"]
            }
        }
        for name, of in results.items()
    }
    probe = {"prompts": ["We will"], "sentences": {"short": "We will meet."}}
    pairs = {
        name: {
            "settings": {"model.position": "alibi"},
            "changes_multiple_settings": False,
            "seeds": 3,
            "shared_tensors": 57,
            "equal_tensors": 57,
            "same_batches": True,
            "parameters": [863243, 861195],
            "flops_per_token": [1002880, 1002880],
            "seconds_per_step": [0.05, 0.06],
            "peak_memory": [5.0e8, 6.0e8],
        }
        for name in variants
    }
    return {
        "schema_version": 2,
        "experiment": {
            "name": "tiny",
            "question": "Does ALiBi help <here>?",
            "description": "One line\nand its end.\n\nA second paragraph.",
            "task": "classify" if metric == "accuracy" else "language-model",
            "primary": {"metric": metric},
            "equivalence_margin": 0.01,
            "model": {"position": ["learned"]},
            "probe": probe,
        },
        "versions": {"headtohead": "0.1.0", "numpy": "2.0"},
        "command": ["/somewhere/bin/h2h", "run", "tiny", "--out", "a folder"],
        "metric": metric,
        "split": "test",
        "rows": "all",
        "interim_analyses": [],
        "verdicts": [verdict.to_dict() for verdict in verdicts],
        "other_verdicts": {"obama": [verdict.to_dict() for verdict in verdicts]},
        "scores": results,
        "curves": curves,
        "pairing": pairs,
        "audits": {name: [audit("cache", True), audit("causality", None)] for name in every},
        "data_audits": [audit("rows of test in train", False), audit("vocabulary", False, is_blocking=False)],
        "failures": [],
        "samples": {
            name: [{"prompt": "We will", "text": f"go on {HOSTILE} {seed}", "seed": seed} for seed in seeds]
            for name in every
        },
        "sentences": {name: {"short": {"0": 210.5, "1": 190.0}} for name in every},
        "published": [
            {
                "source": "B",
                "variant": "baseline",
                "split": "test",
                "metric": metric,
                "step": None,
                "value": 375.02 if metric == "perplexity" else 0.8467,
                "ours": 400.0 if metric == "perplexity" else 0.7,
                "interval": [390.0, 410.0] if metric == "perplexity" else [0.65, 0.75],
                "note": "one seed",
                "other_data": False,
            }
        ],
        "confusion": None,
        "corpus": {
            "origin": "speeches",
            "digest": "96315983",
            "splits": {"test": {"role": "test", "rows": 40, "tokens": 400, "bytes": 2000, "unknown": 0.021}},
        },
    }


@pytest.fixture
def findings() -> Callable[..., Findings]:
    return build


def fill(place: Path, found: Findings) -> Path:
    """An experiment's folder with these findings and a run of each variant that has attention maps."""
    place.mkdir()
    for number, name in enumerate(found["audits"]):
        if "/" in name:  # a name that no folder can have
            continue
        run = place / name / "seed-0"
        run.mkdir(parents=True)
        weights = np.tril(np.ones((2, 4, 4), dtype=np.float32))
        weights /= weights.sum(-1, keepdims=True)
        save_file({"before.0": weights, "after.0": weights ** (1 + number)}, run / "maps.safetensors")
        write_json(run / "maps.json", {"text": " ".join(TOKENS), "tokens": TOKENS})
    write_json(place / "findings.json", typed(found).to_json())
    return place


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[Findings], Path]:
    return lambda found: fill(tmp_path / "tiny", found)


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with everything on it. Drawing it takes seconds, so tests that only look at it share one."""
    from headtohead import report

    (path,) = report.write(fill(tmp_path_factory.mktemp("report") / "tiny", build()))
    return path


def without_drawings(found: Findings) -> Findings:
    """The same without what takes long to draw."""
    return {key: value for key, value in found.items() if key not in ("curves", "scores")}


@pytest.fixture
def plain(findings: Callable[..., Findings]) -> Callable[..., Findings]:
    return lambda *args, **options: without_drawings(findings(*args, **options))
