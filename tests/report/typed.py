"""Findings from plain dictionaries that name only what a test is about."""

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


def typed_verdicts(rows: Any) -> list[Verdict]:
    return [row if isinstance(row, Verdict) else Verdict.from_dict({**VERDICT, **row}) for row in rows]


def typed(raw: Any) -> Findings:
    """Build findings; what a dictionary leaves out gets a neutral value."""
    if isinstance(raw, Findings):
        return raw
    made = {key: value for key, value in raw.items() if value is not None}
    made["verdicts"] = typed_verdicts(made.get("verdicts", []))
    made["other_verdicts"] = {name: typed_verdicts(rows) for name, rows in made.get("other_verdicts", {}).items()}
    made["comparisons"] = [
        {"variants": ["v"], **one, "verdicts": typed_verdicts(one["verdicts"])} for one in made.get("comparisons", [])
    ]
    made["pairing"] = {name: {**PAIRING, **row} for name, row in made.get("pairing", {}).items()}
    made["published"] = [{**PUBLISHED, **row} for row in made.get("published", [])]
    for key, defaults in (
        ("experiment", EXPERIMENT),
        ("corpus", CORPUS),
        ("summarization", SUMMARIZATION),
        ("search", SEARCH),
        ("teacher", TEACHER),
    ):
        if key in made:
            made[key] = {**defaults, **made[key]}
    if "corpus" in made:
        splits = made["corpus"]["splits"].items()
        made["corpus"]["splits"] = {name: {**SPLIT, "role": "test", **row} for name, row in splits}
    if "summarization" in made:
        pairs = made["summarization"]["pairs"]
        made["summarization"]["pairs"] = [
            {**PAIR, **pair, "bootstrap": {**BOOTSTRAP, **pair["bootstrap"]}} for pair in pairs
        ]
    return Findings.model_validate(made)
