"""`data.rare_words`: words that occur once in train are replaced, masked or revealed, and no others."""

import torch

from headtohead.config.tables.data import DataConfig
from headtohead.config.tables.training import TrainingConfig
from headtohead.config.tasks import Target
from headtohead.data.batches import IGNORE_INDEX, BatchSchedule
from headtohead.data.encoding import count_tokens, encode_split
from headtohead.data.sources.loading import load_corpus
from headtohead.data.tokenization.tokenizers import train_tokenizer

ROWS = ["the cat sat on the mat", "the dog sat on the log", "a bird flew over the house", "the cat saw a bird"] * 3
SINGLE = ["one zebra came", "two foxes ran", "three owls slept"]


def build_schedule(write, **rare_words):
    write("train.txt", "\n".join(ROWS + SINGLE))
    path = write("test.txt", "the cat ran")
    data = DataConfig(source=str(path.parent), validation_fraction=0.0, rare_words=rare_words)
    corpus = load_corpus(data, has_labels=False)
    tokenizer = train_tokenizer(data, corpus)
    encoded = encode_split(corpus.train, tokenizer, data, has_labels=False)
    schedule = BatchSchedule(encoded, Target.NEXT_TOKEN, TrainingConfig(batch_size=8), data, 8, 0, tokenizer)
    return schedule, tokenizer, count_tokens(encoded, tokenizer.vocab_size)


def test_made_unknown_on_both_sides_and_only_words_shown_once(write):
    schedule, tokenizer, token_counts = build_schedule(write, unknown=1.0)
    plain, _, _ = build_schedule(write)
    for step in range(10):
        batch, plain_batch = schedule.get_batch(step), plain.get_batch(step)
        for token_ids, plain_ids in ((batch.input_ids, plain_batch.input_ids), (batch.labels, plain_batch.labels)):
            changed = token_ids != plain_ids
            assert torch.equal(changed, token_counts[plain_ids] == 1)
            assert (token_ids[changed] == tokenizer.unk_id).all()


def test_masked_words_are_still_predicted(write):
    schedule, tokenizer, token_counts = build_schedule(write, unknown_input=1.0)
    plain, _, _ = build_schedule(write)
    batch, plain_batch = schedule.get_batch(0), plain.get_batch(0)
    assert torch.equal(batch.labels, plain_batch.labels)
    assert torch.equal(batch.input_ids == tokenizer.unk_id, token_counts[plain_batch.input_ids] == 1)


def test_what_is_given_away_goes_to_words_that_train_never_shows(write):
    write("train_CLS.tsv", "0\tunseen words are here\n1\tand some more of them")
    write("test_CLS.tsv", "0\tunseen\n1\tmore")
    write("train_LM.txt", "\n".join(ROWS + SINGLE))
    path = write("test_LM_obama.txt", "the cat ran")
    data = DataConfig(
        source=str(path.parent), validation_fraction=0.0, vocabulary="folder", rare_words={"unseen_target": 1.0}
    )
    corpus = load_corpus(data, has_labels=False)
    tokenizer = train_tokenizer(data, corpus)
    encoded = encode_split(corpus.train, tokenizer, data, has_labels=False)
    token_counts = count_tokens(encoded, tokenizer.vocab_size)
    schedule = BatchSchedule(encoded, Target.NEXT_TOKEN, TrainingConfig(batch_size=8), data, 8, 0, tokenizer)
    words = set()
    for step in range(20):
        batch = schedule.get_batch(step)
        assert (token_counts[batch.input_ids] > 0).all()  # what is read is the text
        labels = batch.labels[batch.labels != IGNORE_INDEX]
        assert (token_counts[labels] != 1).all()
        words |= {tokenizer.id_to_token(int(i)) for i in labels[token_counts[labels] == 0]}
    assert {"unseen", "words"} <= words and not words & {"<unk>", "<pad>", "zebra"}


def test_a_fraction_is_exact_and_the_same_at_every_call(write):
    schedule, tokenizer, token_counts = build_schedule(write, unknown=0.5)
    plain, _, _ = build_schedule(write)
    num_once = num_unknown = 0
    for step in range(200):
        batch, repeated_batch, plain_batch = schedule.get_batch(step), schedule.get_batch(step), plain.get_batch(step)
        assert torch.equal(batch.input_ids, repeated_batch.input_ids) and torch.equal(
            batch.labels, repeated_batch.labels
        )
        num_once += int((token_counts[plain_batch.input_ids] == 1).sum())
        num_unknown += int((batch.input_ids == tokenizer.unk_id).sum())
    assert 0.4 < num_unknown / num_once < 0.6
    assert schedule.compute_digest(5) != plain.compute_digest(5)


def test_held_back_rows_are_not_in_the_courses_vocabulary(write):
    write("train_CLS.tsv", "0\thello there\n1\tgood bye")
    write("test_CLS.tsv", "0\thello\n1\tbye")
    write("train_LM.txt", "\n".join(f"word{i} and word{i}" for i in range(60)))
    path = write("test_LM_obama.txt", "and so on")
    data = DataConfig(source=str(path.parent), validation_fraction=0.2, vocabulary="folder")
    corpus = load_corpus(data, has_labels=False)
    vocabulary = set(" ".join(corpus.vocabulary_rows).split())
    assert {"hello", "bye"} <= vocabulary
    held_out = {word for row in corpus.splits["validation"].rows for word in row.split()} - {"and"}
    assert held_out and not held_out & vocabulary
