"""Describe and audit an experiment's corpus, and the corpus of every variant that changes it."""

from __future__ import annotations

import numpy as np

from headtohead.audit import data_audit
from headtohead.audit.data_checks import count_baselines, label_leaks, leakage
from headtohead.audit.data_checks.overlap import group_repeated_rows
from headtohead.audit.result import CheckResult
from headtohead.config.experiment import BASELINE, Experiment, Trial
from headtohead.config.loading import build_trial
from headtohead.data import encoding
from headtohead.data.sources import loading
from headtohead.data.splits import HELD_OUT_TEST, Corpus
from headtohead.errors import DataError
from headtohead.experiment import schemas
from headtohead.pretrained import corpus_encoding
from headtohead.tasks.dataset import Dataset
from headtohead.tasks.registry import prepare_dataset


def describe_corpus(experiment: Experiment) -> schemas.CorpusFile:
    """Return the corpus statistics, the data audits, and the held-out rows that do not occur in train."""
    trial = build_trial(experiment, BASELINE, 0)
    dataset = prepare_dataset(trial.data, trial.task)
    corpus, tokenizer = dataset.corpus, dataset.tokenizer
    splits = {}
    for name, split in corpus.splits.items():
        num_tokens = dataset.encoded[name].tokens.numel()
        token_counts = encoding.count_tokens(dataset.encoded[name], tokenizer.vocab_size)
        unknown_rate = 0.0 if tokenizer.unk_id is None else int(token_counts[tokenizer.unk_id]) / num_tokens
        splits[name] = schemas.SplitRecord(
            role=split.role,
            rows=len(split.rows),
            tokens=num_tokens,
            bytes=sum(len(row.encode()) + 1 for row in split.rows),
            unknown=unknown_rate,
            documents=list(split.documents) if split.role != "train" else [],
        )
    # Audit the baseline's corpus, then that of every variant with different data.
    audits, unseen, groups = _audit_data(experiment, trial, dataset)
    count_accuracies, label_audit = _audit_labels(trial, dataset)
    audits += [label_audit, *_report_held_out_test(corpus)]
    variant_audits = {}
    for variant in experiment.variants:
        variant_trial = build_trial(experiment, variant, 0)
        if variant_trial.data != trial.data:
            variant_dataset = prepare_dataset(variant_trial.data, variant_trial.task)
            variant_audits[variant], variant_unseen, _ = _audit_data(experiment, variant_trial, variant_dataset)
            variant_audits[variant].append(_audit_labels(variant_trial, variant_dataset)[1])
            unseen = {
                name: sorted({*rows} & {*variant_unseen.get(name, rows)})
                if len(variant_dataset.corpus.splits.get(name, corpus.splits[name]).rows) == splits[name].rows
                else rows
                for name, rows in unseen.items()
            }
    return schemas.CorpusFile(
        origin=corpus.origin,
        digest=corpus.digest,
        vocab_size=tokenizer.vocab_size,
        labels=list(corpus.label_names),
        splits=splits,
        audits=audits,
        unseen=unseen,
        groups=groups,
        variant_audits=variant_audits,
        count_baselines=count_accuracies,
        count_losses=count_baselines.score_count_models(dataset.encoded, tokenizer.vocab_size)
        if trial.spec.target.is_token and not trial.spec.has_teacher
        else {},
        lines_by_label=_count_words_by_label(trial, corpus),
    )


def compute_corpus_digests(experiment: Experiment) -> dict[str, str]:
    """Return the corpus digest of each variant, including the baseline."""
    trials = {name: build_trial(experiment, name, 0) for name in experiment.names}
    return {name: prepare_dataset(trial.data, trial.task).corpus.digest for name, trial in trials.items()}


def _audit_data(
    experiment: Experiment, trial: Trial, dataset: Dataset
) -> tuple[list[CheckResult], dict[str, list[int]], dict[str, list[int]]]:
    """Return a trial's data audits and, for each test split, its unseen rows and its groups of repeated rows."""
    corpus = dataset.corpus
    tests = [split.name for split in corpus.get_test_splits()]
    # Rows can be excluded or grouped only if an example is a row, not a block of a token stream.
    is_scored_by_row = trial.spec.scores_every_row and (trial.spec.target.is_class or trial.data.rows == "sentences")
    use = leakage.DataUse(
        judged_splits=frozenset(tests if experiment.primary.split == "test" else [experiment.primary.split]),
        is_scored_by_row=is_scored_by_row,
        selects_on_validation=trial.training.load_best_model_at_end
        or trial.training.early_stopping is not None
        or experiment.search is not None,
        allow_overlap=trial.data.allow_overlap,
        is_tokenizer_given=trial.data.tokenizer.kind == "file",
        unknown_rate=trial.data.word_dropout,
    )
    audits = data_audit.audit_data(corpus, dataset.tokenizer, encoded_splits=dataset.encoded, use=use)
    if not is_scored_by_row:
        return audits, {}, {}
    unseen = {
        name: np.flatnonzero(leakage.compute_unseen_mask(corpus, name, allow_overlap=use.allow_overlap)).tolist()
        for name in tests
    }
    # In a generated corpus, repeats are independent draws.
    groups = {} if use.allow_overlap else {name: group_repeated_rows(corpus.splits[name].rows) for name in tests}
    # Splits without repeats need no groups.
    repeating = {name: ids.tolist() for name, ids in groups.items() if (ids != np.arange(len(ids))).any()}
    return audits, unseen, repeating


def _report_held_out_test(corpus: Corpus) -> list[CheckResult]:
    """Report how many training rows were held out as the test split; an empty list if the source has one."""
    if HELD_OUT_TEST not in corpus.origin:
        return []
    (test,) = corpus.get_test_splits()
    num_train = len(corpus.splits["train"].rows)
    return [
        CheckResult(
            "held-out-test",
            True,
            "splits of the source",
            f"the source has no test split, so {len(test.rows):,} of {num_train + len(test.rows):,} training rows are "
            "held out as test",
            "To train on all rows, give a test file (data.files).",
        )
    ]


def _audit_labels(trial: Trial, dataset: Dataset) -> tuple[dict[str, dict[str, float]], CheckResult]:
    """Return the accuracy of count-based classifiers as {method: {split: accuracy}}, and the label-leak check.

    The classifiers count the dataset's tokens, or words if a pretrained model uses subwords.
    """
    corpus, tokenizer, encoded = dataset.corpus, dataset.tokenizer, dataset.encoded
    tests = [split.name for split in corpus.get_test_splits()]
    if not dataset.label_names:
        return {}, label_leaks.audit_label_leak({}, tests, {}, {})
    vocab_size, get_name = tokenizer.vocab_size, tokenizer.id_to_token
    if trial.spec.needs_pretrained:
        encoded, words = corpus_encoding.encode_as_words(corpus)
        vocab_size, get_name = words.vocab_size, words.id_to_token
    accuracies = count_baselines.score_simple_classifiers(corpus, encoded, vocab_size)
    features = label_leaks.find_leaking_features(corpus, encoded, vocab_size, get_name)
    marks = label_leaks.find_label_marks(encoded["train"], len(dataset.label_names), vocab_size)
    named_marks = {get_name(token): share for token, share in marks.items()}
    return accuracies, label_leaks.audit_label_leak(accuracies, tests, features, named_marks)


def _count_words_by_label(trial: Trial, unlabelled_corpus: Corpus) -> dict[str, dict[str, int]]:
    """Return how many of each split's lines occur under each label in the same source.

    The result is empty if the source has no labelled rows, or if the task is not plain language modeling.
    """
    if trial.spec.target.is_class or trial.spec.has_teacher or trial.data.files is not None:
        return {}
    try:
        labelled = loading.load_corpus(trial.data, has_labels=True)
    except DataError:
        return {}
    return count_baselines.count_lines_by_label(unlabelled_corpus, labelled)
