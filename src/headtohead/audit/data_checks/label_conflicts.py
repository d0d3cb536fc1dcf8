"""Label conflicts: texts that have more than one label, within a split or between train and a held-out split."""

from __future__ import annotations

from headtohead.audit.data_checks.word_hashing import normalize_text
from headtohead.audit.result import CheckResult, build_inapplicable_result
from headtohead.data.splits import Corpus, Split

CHECK_NAME = "conflicting labels"


def audit_label_conflicts(corpus: Corpus) -> CheckResult:
    """Check that no text has more than one label, since no model can predict both."""
    if not corpus.has_labels:
        return build_inapplicable_result(CHECK_NAME, "a language model has no labels")
    train_labels = _collect_labels_by_text(corpus.train)
    conflicts, examples = [], []
    for split in corpus.splits.values():
        labels_by_text = train_labels if split.role == "train" else _collect_labels_by_text(split)
        ambiguous_texts = [text for text, labels in labels_by_text.items() if len(labels) > 1]
        if ambiguous_texts:
            conflicts.append(f"{_format_count(len(ambiguous_texts), 'text')} of {split.name} with more than one label")
            examples.append(_format_conflict_example(corpus, split, ambiguous_texts[0]))
        if split.role != "train":
            contradicting_texts = [
                text
                for text, labels in labels_by_text.items()
                if text in train_labels and not labels <= train_labels[text]
            ]
            if contradicting_texts:
                conflicts.append(
                    f"{_format_count(len(contradicting_texts), 'text')} of {split.name} "
                    "with a label that it does not have in train"
                )
                examples.append(_format_conflict_example(corpus, split, contradicting_texts[0]))
    procedure = "labels of texts that are equal up to case, punctuation and whitespace"
    if not conflicts:
        return CheckResult(
            CHECK_NAME,
            True,
            procedure,
            "every text has one label",
            "No two rows require different answers to the same text.",
        )
    interpretation = "No model can classify all of these rows correctly: they limit the attainable accuracy."
    observation = f"{'; '.join(conflicts)} (for example {examples[0]})"
    return CheckResult(CHECK_NAME, False, procedure, observation, interpretation, failure_reason="conflicting labels")


def _collect_labels_by_text(split: Split) -> dict[str, set[int]]:
    """Return the labels that each text of a split has, by normalized text, to find texts with several."""
    labels_by_text: dict[str, set[int]] = {}
    assert split.labels is not None, "a classifier's split has labels"
    for row, label in zip(split.rows, split.labels, strict=True):
        labels_by_text.setdefault(normalize_text(row), set()).add(label)
    return labels_by_text


def _format_conflict_example(corpus: Corpus, split: Split, normalized_text: str) -> str:
    """Format a row whose text occurs in train with a different label."""
    row = next(row for row in split.rows if normalize_text(row) == normalized_text)
    labels = set().union(
        *(_collect_labels_by_text(labeled_split).get(normalized_text, set()) for labeled_split in (corpus.train, split))
    )
    excerpt = row if len(row) <= 60 else f"{row[:57]}..."
    return f"{excerpt!r}: {', '.join(corpus.label_names[label] for label in sorted(labels))}"


def _format_count(count: int, noun: str) -> str:
    """Return a number of conflicting texts, such as "2 texts"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
