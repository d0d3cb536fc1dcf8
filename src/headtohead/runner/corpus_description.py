"""Build corpus.json: the statistics and audits of an experiment's corpus, and audits of variants' different data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from headtohead.audit import data_audit
from headtohead.audit.data_checks import count_baselines, label_leaks, split_leakage
from headtohead.audit.data_checks.label_agreement import audit_label_agreement
from headtohead.audit.data_checks.text_overlap import group_repeated_rows
from headtohead.audit.data_checks.word_hashing import normalize_text
from headtohead.audit.result import CheckResult
from headtohead.config.experiment import BASELINE, Experiment, Trial
from headtohead.config.trial_settings import build_trial
from headtohead.data import encoding
from headtohead.data.sources import loading
from headtohead.data.splits import HELD_OUT_TEST_ORIGIN, Corpus
from headtohead.errors import DataError
from headtohead.experiment import schemas
from headtohead.pretrained import corpus_encoding
from headtohead.tasks.dataset import Dataset
from headtohead.tasks.registry import prepare_dataset


def describe_corpus(experiment: Experiment) -> schemas.CorpusFile:
    """Return the content of corpus.json: statistics, data audits, and the held-out rows that do not occur in train."""
    trial = build_trial(experiment, BASELINE, 0)
    dataset = prepare_dataset(trial.data, trial.task)
    corpus, tokenizer = dataset.corpus, dataset.tokenizer
    split_records = {}
    for name, split in corpus.splits.items():
        num_tokens = dataset.encoded[name].token_ids.numel()
        token_counts = encoding.count_tokens(dataset.encoded[name], tokenizer.vocab_size)
        unknown_fraction = 0.0 if tokenizer.unk_id is None else int(token_counts[tokenizer.unk_id]) / num_tokens
        split_records[name] = schemas.SplitRecord(
            role=split.role,
            rows=len(split.rows),
            tokens=num_tokens,
            bytes=sum(len(row.encode()) + 1 for row in split.rows),
            unknown=unknown_fraction,
            documents=list(split.documents) if split.role != "train" else [],
        )
    # Audit the baseline's corpus, then that of every variant with different data.
    audits, unseen_rows, repeat_groups = _audit_data(experiment, trial, dataset)
    count_accuracies, label_audits = _audit_labels(trial, dataset)
    audits += [*label_audits, *_report_test_split_from_train(corpus)]
    variant_audits = {}
    for variant in experiment.variants:
        variant_trial = build_trial(experiment, variant, 0)
        if variant_trial.data != trial.data:
            variant_dataset = prepare_dataset(variant_trial.data, variant_trial.task)
            variant_audits[variant], variant_unseen, _ = _audit_data(experiment, variant_trial, variant_dataset)
            variant_audits[variant] += _audit_labels(variant_trial, variant_dataset)[1]
            unseen_rows = {
                name: sorted({*rows} & {*variant_unseen.get(name, rows)})
                if len(variant_dataset.corpus.splits.get(name, corpus.splits[name]).rows) == split_records[name].rows
                else rows
                for name, rows in unseen_rows.items()
            }
    return schemas.CorpusFile(
        origin=corpus.origin,
        digest=corpus.digest,
        vocab_size=tokenizer.vocab_size,
        labels=list(corpus.label_names),
        splits=split_records,
        audits=audits,
        unseen=unseen_rows,
        groups=repeat_groups,
        variant_audits=variant_audits,
        count_baselines=count_accuracies,
        count_losses=count_baselines.score_count_models(dataset.encoded, tokenizer.vocab_size)
        if trial.spec.target.is_token_label and not trial.spec.has_teacher
        else {},
        lines_by_label=_count_lines_by_label(trial, corpus),
    )


def compute_corpus_digests(experiment: Experiment) -> dict[str, str]:
    """Return the corpus digest of each variant, including the baseline."""
    trials = {name: build_trial(experiment, name, 0) for name in experiment.names}
    return {name: prepare_dataset(trial.data, trial.task).corpus.digest for name, trial in trials.items()}


def _audit_data(
    experiment: Experiment, trial: Trial, dataset: Dataset
) -> tuple[list[CheckResult], dict[str, list[int]], dict[str, list[int]]]:
    """Return what corpus.json says about a trial's data: audits, unseen rows and groups of repeated rows per split."""
    corpus = dataset.corpus
    test_splits = [split.name for split in corpus.get_test_splits()]
    # Rows can only be excluded or grouped if each example is a row, not a block of a stream.
    is_scored_by_row = trial.spec.scores_every_row and (
        trial.spec.target.is_class_label or trial.data.rows == "sentences"
    )
    data_use = split_leakage.DataUse(
        judged_splits=frozenset(test_splits if experiment.primary.split == "test" else [experiment.primary.split]),
        is_scored_by_row=is_scored_by_row,
        selects_on_validation=trial.training.load_best_model_at_end
        or trial.training.early_stopping is not None
        or experiment.search is not None,
        allow_overlap=trial.data.allow_overlap,
        is_tokenizer_given=trial.data.tokenizer.kind == "file",
        unknown_rate=trial.data.word_dropout,
    )
    audits = data_audit.audit_data(corpus, dataset.tokenizer, encoded_splits=dataset.encoded, use=data_use)
    if not is_scored_by_row:
        return audits, {}, {}
    unseen_rows = {
        name: np.flatnonzero(
            split_leakage.compute_unseen_mask(corpus, name, allow_overlap=data_use.allow_overlap)
        ).tolist()
        for name in test_splits
    }
    # In a generated corpus, repeats are independent draws.
    groups_by_split = (
        {} if data_use.allow_overlap else {name: group_repeated_rows(corpus.splits[name].rows) for name in test_splits}
    )
    # Splits without repeats need no groups.
    repeat_groups = {
        name: first_rows.tolist()
        for name, first_rows in groups_by_split.items()
        if (first_rows != np.arange(len(first_rows))).any()
    }
    return audits, unseen_rows, repeat_groups


def _report_test_split_from_train(corpus: Corpus) -> list[CheckResult]:
    """Return the entry of corpus.json on a test split that was held out from train; empty if the source has a test."""
    if HELD_OUT_TEST_ORIGIN not in corpus.origin:
        return []
    (test_split,) = corpus.get_test_splits()
    num_train, num_test = len(corpus.splits["train"].rows), len(test_split.rows)
    return [
        CheckResult(
            "held-out-test",
            True,
            "splits of the source",
            f"the source has no test split, so {num_test:,} of {num_train + num_test:,} training rows are held "
            "out as test",
            "To train on all rows, give a test file (data.files).",
        )
    ]


def _audit_labels(trial: Trial, dataset: Dataset) -> tuple[dict[str, dict[str, float]], list[CheckResult]]:
    """Return what corpus.json says about labels: accuracies of count-based classifiers, and the audits of the labels.

    The classifiers count tokens, or words if a pretrained model uses subwords.
    """
    corpus, tokenizer, encoded = dataset.corpus, dataset.tokenizer, dataset.encoded
    split_sizes = {split.name: len(split.rows) for split in corpus.get_test_splits()}
    if not dataset.label_names:
        return {}, [label_leaks.audit_label_leak({}, split_sizes, {}, {})]
    vocab_size, id_to_token = tokenizer.vocab_size, tokenizer.id_to_token
    if trial.spec.needs_pretrained:
        encoded, word_tokenizer = corpus_encoding.encode_splits_as_words(corpus)
        vocab_size, id_to_token = word_tokenizer.vocab_size, word_tokenizer.id_to_token
    accuracies = count_baselines.score_simple_classifiers(corpus, encoded, vocab_size)
    features = label_leaks.find_leaking_features(corpus, encoded, vocab_size, id_to_token)
    label_marks = label_leaks.find_label_marks(encoded["train"], len(dataset.label_names), vocab_size)
    shares_by_token = {id_to_token(token_id): share for token_id, share in label_marks.items()}
    return accuracies, [
        label_leaks.audit_label_leak(accuracies, split_sizes, features, shares_by_token),
        audit_label_agreement(corpus, encoded, vocab_size),
    ]


def _count_lines_by_label(trial: Trial, unlabeled_corpus: Corpus) -> dict[str, dict[str, int]]:
    """Return the number of lines in each split that also occur under each label of the same source.

    Empty if the source has no labeled rows, or if the task is not plain language modeling.
    """
    if trial.spec.target.is_class_label or trial.spec.has_teacher or trial.data.files is not None:
        return {}
    try:
        labeled_corpus = loading.load_corpus(trial.data, has_labels=True)
    except DataError:
        return {}
    train = labeled_corpus.train
    assert train.labels is not None
    label_by_text = dict(zip(map(normalize_text, train.rows), train.labels, strict=True))
    return {
        name: _count_rows_by_label(split.rows, label_by_text, labeled_corpus.label_names)
        for name, split in unlabeled_corpus.splits.items()
    }


def _count_rows_by_label(
    rows: Sequence[str], label_by_text: Mapping[str, int], label_names: Sequence[str]
) -> dict[str, int]:
    """Return the number of a split's lines per label for corpus.json; unknown labels count as "not traced"."""
    counts = Counter(label_by_text.get(normalize_text(row)) for row in rows)
    return {**{name: counts[index] for index, name in enumerate(label_names)}, "not traced": counts[None]}
