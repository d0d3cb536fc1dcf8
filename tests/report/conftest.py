"""Small synthetic findings: real verdicts on random scores, and all other content of a report."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from headtohead.json_files import write_json
from headtohead.verdict.compare import compare_scores
from headtohead.verdict.scores import Scores

from .make_findings import make_findings

HOSTILE = "</script><b>bold</b>&\"'"
TOKENS = ["The", "<b>", "people", "."]
RawFindings = dict[str, Any]


def make_audit(name: str, passed: bool | None, *, is_blocking: bool = True) -> dict[str, Any]:
    return {
        "name": name,
        "passed": passed,
        "is_blocking": is_blocking,
        "procedure": f"procedure of {name}",
        "observation": f"observation of {name}",
        "interpretation": f"interpretation of {name}",
        "failure_reason": name,
    }


def build_raw_findings(
    variants: dict[str, float] | None = None,
    *,
    metric: str = "perplexity",
    withheld_reasons: dict[str, list[str]] | None = None,
) -> RawFindings:
    """Return findings of an experiment whose variants differ from the baseline by given amounts in loss or accuracy."""
    variants = {"alibi": -0.08, HOSTILE: 0.002} if variants is None else variants
    rng = np.random.default_rng(7)
    seeds, num_rows = (0, 1, 2), 40
    noise = rng.normal(0, 0.01, (3, num_rows))

    def draw_scores(shift: float) -> Scores:
        if metric == "accuracy":
            correct = (rng.random((3, num_rows)) < 0.7 + shift).astype(float)
            return Scores(seeds, correct, np.ones(num_rows))
        loss = 6.0 + noise + shift + rng.normal(0, 0.002, (3, num_rows))
        return Scores(seeds, 10 * loss, np.full(num_rows, 10.0))

    baseline_scores = draw_scores(0.0)
    variant_scores = {name: draw_scores(shift) for name, shift in variants.items()}
    scores_by_variant = {"baseline": baseline_scores, **variant_scores}
    verdicts = compare_scores(
        baseline_scores, variant_scores, metric=metric, equivalence_margin=0.01, withheld=withheld_reasons or {}
    )

    def to_displayed_score(mean: float) -> float:
        return float(np.exp(mean)) if metric == "perplexity" else float(mean)

    results = {
        name: {
            "test": [
                [seed, to_displayed_score(mean)] for seed, mean in zip(seeds, scores.compute_seed_means(), strict=True)
            ]
        }
        for name, scores in scores_by_variant.items()
    }
    curves = {
        name: {
            "test": {
                str(seed): [[step, final_score * (1 + 8 / (1 + step))] for step in (0, 100, 200, 300, 400)]
                for seed, final_score in split_results["test"]
            }
        }
        for name, split_results in results.items()
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
        "audits": {name: [make_audit("cache", True), make_audit("causality", None)] for name in scores_by_variant},
        "data_audits": [
            make_audit("rows of test in train", False),
            make_audit("vocabulary", False, is_blocking=False),
        ],
        "failures": [],
        "samples": {
            name: [{"prompt": "We will", "text": f"go on {HOSTILE} {seed}", "seed": seed} for seed in seeds]
            for name in scores_by_variant
        },
        "sentences": {name: {"short": {"0": 210.5, "1": 190.0}} for name in scores_by_variant},
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
def raw_findings() -> Callable[..., RawFindings]:
    return build_raw_findings


def write_experiment_folder(folder: Path, findings: RawFindings) -> Path:
    """Write an experiment folder with these findings and a run with attention maps for each variant."""
    folder.mkdir()
    for number, name in enumerate(findings["audits"]):
        if "/" in name:  # a name that no folder can have
            continue
        run = folder / name / "seed-0"
        run.mkdir(parents=True)
        weights = np.tril(np.ones((2, 4, 4), dtype=np.float32))
        weights /= weights.sum(-1, keepdims=True)
        save_file({"before.0": weights, "after.0": weights ** (1 + number)}, run / "maps.safetensors")
        write_json(run / "maps.json", {"text": " ".join(TOKENS), "tokens": TOKENS})
    write_json(folder / "findings.json", make_findings(findings).to_json())
    return folder


@pytest.fixture
def write_folder(tmp_path: Path) -> Callable[[RawFindings], Path]:
    return lambda findings: write_experiment_folder(tmp_path / "tiny", findings)


@pytest.fixture(scope="session")
def report_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete report page. Rendering takes seconds, so read-only tests share one."""
    from headtohead import report

    (path,) = report.write(write_experiment_folder(tmp_path_factory.mktemp("report") / "tiny", build_raw_findings()))
    return path


def drop_curves_and_scores(findings: RawFindings) -> RawFindings:
    """Return findings without those that are shown in slow charts."""
    return {key: value for key, value in findings.items() if key not in ("curves", "scores")}


@pytest.fixture
def raw_findings_without_curves(raw_findings: Callable[..., RawFindings]) -> Callable[..., RawFindings]:
    return lambda *args, **options: drop_curves_and_scores(raw_findings(*args, **options))
