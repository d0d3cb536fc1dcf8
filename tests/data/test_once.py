"""Words that train shows once: made unknown, hidden, or given away, as data.rare_words asks and no others."""

import torch

from headtohead.config.data import DataConfig
from headtohead.config.tasks import Target
from headtohead.config.training import TrainingConfig
from headtohead.data.batches import IGNORE_INDEX, BatchSchedule
from headtohead.data.encoding import count_tokens, encode_split
from headtohead.data.sources.loading import load_corpus
from headtohead.data.tokenizers import train_tokenizer

ROWS = ["the cat sat on the mat", "the dog sat on the log", "a bird flew over the house", "the cat saw a bird"] * 3
SINGLE = ["one zebra came", "two foxes ran", "three owls slept"]


def made(write, **once):
    write("train.txt", "\n".join(ROWS + SINGLE))
    path = write("test.txt", "the cat ran")
    data = DataConfig(source=str(path.parent), validation_fraction=0.0, rare_words=once)
    texts = load_corpus(data, has_labels=False)
    tokenizer = train_tokenizer(data, texts)
    encoded = encode_split(texts.train, tokenizer, data, has_labels=False)
    schedule = BatchSchedule(encoded, Target.NEXT_TOKEN, TrainingConfig(batch_size=8), data, 8, 0, tokenizer)
    return schedule, tokenizer, count_tokens(encoded, tokenizer.vocab_size)


def test_made_unknown_on_both_sides_and_only_words_shown_once(write):
    schedule, tokenizer, shown = made(write, unknown=1.0)
    plain, _, _ = made(write)
    for step in range(10):
        ours, theirs = schedule.batch(step), plain.batch(step)
        for one, other in ((ours.input_ids, theirs.input_ids), (ours.labels, theirs.labels)):
            changed = one != other
            assert torch.equal(changed, shown[other] == 1)
            assert (one[changed] == tokenizer.unk_id).all()


def test_hidden_words_are_still_to_be_said(write):
    schedule, tokenizer, shown = made(write, unknown_input=1.0)
    plain, _, _ = made(write)
    ours, theirs = schedule.batch(0), plain.batch(0)
    assert torch.equal(ours.labels, theirs.labels)
    assert torch.equal(ours.input_ids == tokenizer.unk_id, shown[theirs.input_ids] == 1)


def test_what_is_given_away_goes_to_words_that_train_never_shows(write):
    write("train_CLS.tsv", "0\tunseen words are here\n1\tand some more of them")
    write("test_CLS.tsv", "0\tunseen\n1\tmore")
    write("train_LM.txt", "\n".join(ROWS + SINGLE))
    path = write("test_LM_obama.txt", "the cat ran")
    data = DataConfig(
        source=str(path.parent), validation_fraction=0.0, vocabulary="folder", rare_words={"unseen_target": 1.0}
    )
    texts = load_corpus(data, has_labels=False)
    tokenizer = train_tokenizer(data, texts)
    encoded = encode_split(texts.train, tokenizer, data, has_labels=False)
    shown = count_tokens(encoded, tokenizer.vocab_size)
    schedule = BatchSchedule(encoded, Target.NEXT_TOKEN, TrainingConfig(batch_size=8), data, 8, 0, tokenizer)
    words = set()
    for step in range(20):
        batch = schedule.batch(step)
        assert (shown[batch.input_ids] > 0).all()  # what is read is the text
        labels = batch.labels[batch.labels != IGNORE_INDEX]
        assert (shown[labels] != 1).all()
        words |= {tokenizer.id_to_token(int(i)) for i in labels[shown[labels] == 0]}
    assert {"unseen", "words"} <= words and not words & {"<unk>", "<pad>", "zebra"}


def test_a_share_is_a_share_and_the_same_at_every_call(write):
    schedule, tokenizer, shown = made(write, unknown=0.5)
    plain, _, _ = made(write)
    once = unknown = 0
    for step in range(200):
        ours, again, theirs = schedule.batch(step), schedule.batch(step), plain.batch(step)
        assert torch.equal(ours.input_ids, again.input_ids) and torch.equal(ours.labels, again.labels)
        once += int((shown[theirs.input_ids] == 1).sum())
        unknown += int((ours.input_ids == tokenizer.unk_id).sum())
    assert 0.4 < unknown / once < 0.6
    assert schedule.digest(5) != plain.digest(5)


def test_held_back_rows_are_not_in_the_courses_vocabulary(write):
    write("train_CLS.tsv", "0\thello there\n1\tgood bye")
    write("test_CLS.tsv", "0\thello\n1\tbye")
    write("train_LM.txt", "\n".join(f"word{i} and word{i}" for i in range(60)))
    path = write("test_LM_obama.txt", "and so on")
    data = DataConfig(source=str(path.parent), validation_fraction=0.2, vocabulary="folder")
    texts = load_corpus(data, has_labels=False)
    vocabulary = set(" ".join(texts.vocabulary_rows).split())
    assert {"hello", "bye"} <= vocabulary
    held = {word for row in texts.splits["validation"].rows for word in row.split()} - {"and"}
    assert held and not held & vocabulary
