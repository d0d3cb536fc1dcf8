"""Build findings from partial dictionaries."""

from typing import Any

from headtohead.experiment.schemas import Findings
from headtohead.verdict.record import Verdict

VERDICT: dict[str, Any] = {
    "variant": "v",
    "outcome": "cannot tell",
    "metric": "perplexity",
    "equivalence_margin": 0.01,
    "baseline_mean": None,
    "variant_mean": None,
    "effect": None,
    "is_better": False,
    "interval": [None, None],
    "seed_interval": [None, None],
    "equivalence_interval": [None, None],
    "confidence": 0.95,
    "adjusted_confidence": 0.95,
    "seeds": 0,
    "examples": 0,
    "documents": 0,
    "dominant_noise_source": "unknown",
    "min_detectable_effect": None,
    "additional_seeds": None,
    "additional_documents": None,
    "summary": "",
    "reason": "",
}
MEASURE: dict[str, Any] = {"value": 0.0, "by_seed": [], "over_documents": [0.0, 0.0], "over_seeds": None}
SUMMARIZATION: dict[str, Any] = {
    "signature": "",
    "num_documents": 0,
    "scores": {},
    "costs": {},
    "pairs": [],
    "examples": [],
    "published": [],
    "claims": [],
    "num_truncated": {},
}
PAIR: dict[str, Any] = {"min_detectable_effect": None, "adjusted_confidence": 0.95, "seeds": 0, "examples": 0}
BOOTSTRAP: dict[str, Any] = {"value": 0.0, "positive_share": 0.0, "above": 0.0, "documents": 0, "num_documents": 0}
SEARCH: dict[str, Any] = {"seconds": 0.0, "seed_std": None, "checksums": {}}
EXPERIMENT: dict[str, Any] = {
    "name": "tiny",
    "question": "",
    "task": "language-model",
    "primary": {"metric": "perplexity"},
}
PAIRING: dict[str, Any] = {"settings": {}, "changes_multiple_settings": False, "seeds": 0}
CORPUS: dict[str, Any] = {"origin": "", "digest": "", "labels": [], "splits": {}}
SPLIT: dict[str, Any] = {"rows": 0, "tokens": 0, "bytes": 0, "unknown": 0.0}
TEACHER: dict[str, Any] = {"name": "teacher", "digest": ""}
PUBLISHED: dict[str, Any] = {"ours": None, "interval": None, "seeds": 0}


def make_verdicts(rows: Any) -> list[Verdict]:
    return [row if isinstance(row, Verdict) else Verdict.from_dict({**VERDICT, **row}) for row in rows]


def make_findings(raw: Any) -> Findings:
    """Build findings. Fields missing from the dictionary receive neutral values."""
    if isinstance(raw, Findings):
        return raw
    result = {key: value for key, value in raw.items() if value is not None}
    result["verdicts"] = make_verdicts(result.get("verdicts", []))
    result["other_verdicts"] = {name: make_verdicts(rows) for name, rows in result.get("other_verdicts", {}).items()}
    result["comparisons"] = [
        {"variants": ["v"], **item, "verdicts": make_verdicts(item["verdicts"])}
        for item in result.get("comparisons", [])
    ]
    result["pairing"] = {name: {**PAIRING, **row} for name, row in result.get("pairing", {}).items()}
    result["published"] = [{**PUBLISHED, **row} for row in result.get("published", [])]
    for key, defaults in (
        ("experiment", EXPERIMENT),
        ("corpus", CORPUS),
        ("summarization", SUMMARIZATION),
        ("search", SEARCH),
        ("teacher", TEACHER),
    ):
        if key in result:
            result[key] = {**defaults, **result[key]}
    if "corpus" in result:
        splits = result["corpus"]["splits"].items()
        result["corpus"]["splits"] = {name: {**SPLIT, "role": "test", **row} for name, row in splits}
    if "summarization" in result:
        pairs = result["summarization"]["pairs"]
        result["summarization"]["pairs"] = [
            {**PAIR, **pair, "bootstrap": {**BOOTSTRAP, **pair["bootstrap"]}} for pair in pairs
        ]
    return Findings.model_validate(result)
