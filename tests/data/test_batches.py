"""Batches: a pure function of (seed, step), nothing lost, nothing seen twice, padding outside the loss."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headtohead.config.data import DataConfig
from headtohead.config.tasks import Target
from headtohead.config.training import TrainingConfig
from headtohead.data.batches import IGNORE_INDEX, BatchSchedule
from headtohead.data.encoding import TokenRows, TokenStream, encode_split
from headtohead.data.examples import build_evaluation_examples
from headtohead.data.splits import Corpus, Split
from headtohead.data.tokenizers import CorpusTokenizer, train_tokenizer
from headtohead.errors import DataError

WORDS = " ".join(f"w{i}" for i in range(50))
TEXTS = ("w1 w2 w3", "w4", "w5 w6 w7 w8 w9 w10 w11 w12", "w1 w13", "w2 w2 w2 w2 w2")


def corpus(task: str = "language-model", rows: tuple[str, ...] = TEXTS) -> Corpus:
    labels = tuple(i % 2 for i in range(len(rows))) if task == "classify" else None
    split = Split("train", "train", rows, labels)
    return Corpus(task == "classify", {"train": split}, ("a", "b"), (WORDS,), "here", "")


def tokens(task: str = "language-model", **data: object) -> CorpusTokenizer:
    return train_tokenizer(DataConfig.model_validate(data), corpus(task))


PLAIN = tokens()


def stream(length: int) -> TokenStream:
    """Every token is its own place, so that a block says where it is from."""
    return TokenStream("train", torch.arange(length))


def schedule(
    encoded: TokenStream | TokenRows,
    context: int,
    seed: int = 0,
    target: Target = Target.NEXT_TOKEN,
    unknown: float = 0.0,
    **training: object,
) -> BatchSchedule:
    settings = TrainingConfig.model_validate({"batch_size": 4, **training})
    return BatchSchedule(encoded, target, settings, DataConfig(word_dropout=unknown), context, seed, PLAIN)


@pytest.mark.parametrize("sampling", ["random", "shuffled"])
def test_labels_are_the_next_tokens(sampling: str) -> None:
    made = schedule(stream(100), 8, sampling=sampling)
    for step in range(20):
        batch = made.batch(step)
        assert batch.input_ids.shape[1] == 8
        assert torch.equal(batch.labels, batch.input_ids + 1)
        assert torch.equal(batch.input_ids[:, 1:], batch.labels[:, :-1])
        assert batch.attention_mask is None


@pytest.mark.parametrize("sampling", ["random", "shuffled"])
def test_a_batch_depends_on_seed_and_step_alone(sampling: str) -> None:
    one, other = schedule(stream(100), 8, sampling=sampling), schedule(stream(100), 8, sampling=sampling)
    forward = [one.batch(step).input_ids for step in range(30)]
    torch.manual_seed(5)
    for step in reversed(range(30)):
        assert torch.equal(other.batch(step).input_ids, forward[step])
    assert any(
        not torch.equal(schedule(stream(100), 8, 1, sampling=sampling).batch(s).input_ids, forward[s]) for s in range(3)
    )


def test_random_blocks_reach_every_token() -> None:
    made = schedule(stream(30), 8)
    seen = {int(i) for step in range(200) for i in made.batch(step).labels.flatten()}
    assert seen == set(range(1, 30))


@given(length=st.integers(9, 200), context=st.integers(1, 8), batch=st.integers(1, 7), seed=st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_shuffled_sees_every_block_once_an_epoch(length: int, context: int, batch: int, seed: int) -> None:
    made = schedule(stream(length), context, seed, sampling="shuffled", batch_size=batch)
    for epoch in range(2):
        starts = torch.cat(
            [made.batch(epoch * made.steps_per_epoch + step).input_ids[:, 0] for step in range(made.steps_per_epoch)]
        )
        assert len(starts) == made.items
        ordered = starts.sort().values
        assert torch.equal(ordered.diff(), torch.full((len(starts) - 1,), context))
        assert ordered[0] < context
        # Less than two blocks are left over, at either end.
        assert length - 1 - made.items * context < 2 * context


def test_phase_and_order_change_from_epoch_to_epoch() -> None:
    made = schedule(stream(500), 8, sampling="shuffled")
    firsts = {int(made.indices(epoch * made.steps_per_epoch)[0]) for epoch in range(20)}
    assert len({first % 8 for first in firsts}) > 3
    assert len(firsts) > 10


def test_shuffled_keeps_the_last_short_batch() -> None:
    made = schedule(stream(8 * 11), 8, sampling="shuffled")
    assert (made.items, made.steps_per_epoch) == (10, 3)
    assert [len(made.batch(step).input_ids) for step in range(4)] == [4, 4, 2, 4]


def test_an_epoch_of_random_blocks_is_as_long_as_the_text() -> None:
    assert schedule(stream(8 * 4 * 5 + 1), 8).steps_per_epoch == 5
    assert schedule(stream(8 * 4 * 5 + 2), 8).steps_per_epoch == 6


@pytest.mark.parametrize("sampling", ["random", "shuffled"])
def test_a_text_of_one_block_is_enough_and_a_shorter_one_is_refused(sampling: str) -> None:
    assert torch.equal(schedule(stream(9), 8, sampling=sampling).batch(3).input_ids[0], torch.arange(8))
    with pytest.raises(DataError, match=r"train: the text has 8 tokens, and one block of context 8 needs 9; give more"):
        schedule(stream(8), 8, sampling=sampling)


def test_stream_is_the_rows_joined() -> None:
    found = encode_split(corpus().train, PLAIN, DataConfig(), has_labels=False)
    assert isinstance(found, TokenStream)
    assert found.tokens.tolist() == PLAIN.encode(" ".join(TEXTS))


def test_stream_of_characters_has_the_line_ends() -> None:
    data = DataConfig.model_validate({"tokenizer": "characters"})
    tokenizer = train_tokenizer(data, corpus())
    found = encode_split(corpus().train, tokenizer, data, has_labels=False)
    assert tokenizer.decode(found.tokens.tolist()) == "\n".join(TEXTS)


def classified(context: int, seed: int = 0, **training: object) -> tuple[BatchSchedule, TokenRows]:
    found = encode_split(corpus("classify").train, PLAIN, DataConfig(), has_labels=True)
    assert isinstance(found, TokenRows)
    return schedule(found, context, seed, Target.CLASS, **training), found


def test_classifier_rows_are_padded_on_the_right_to_the_context() -> None:
    made, rows = classified(6, batch_size=5)
    batch = made.batch(0)
    assert batch.input_ids.shape == (5, 6)
    assert batch.attention_mask is not None
    for at, ids, mask, label in zip(made.indices(0), batch.input_ids, batch.attention_mask, batch.labels, strict=True):
        expected = PLAIN.encode(TEXTS[at])[:6]
        assert ids[: len(expected)].tolist() == expected
        assert mask.tolist() == [i < len(expected) for i in range(6)]
        assert (ids[~mask] == PLAIN.pad_id).all()
        assert label == at % 2
    assert rows.count_truncated(6) == 1


def test_every_row_comes_once_an_epoch_in_a_new_order() -> None:
    made, _ = classified(6, batch_size=2)
    assert made.steps_per_epoch == 3
    epochs = [torch.cat([made.indices(3 * epoch + step) for step in range(3)]).tolist() for epoch in range(6)]
    assert all(sorted(epoch) == list(range(5)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 2
    assert len(made.batch(2).labels) == 1


def sentence_rows() -> tuple[TokenRows, CorpusTokenizer, DataConfig]:
    data = DataConfig(rows="sentences")
    tokenizer = tokens(rows="sentences")
    found = encode_split(corpus().train, tokenizer, data, has_labels=False)
    assert isinstance(found, TokenRows)
    return found, tokenizer, data


def test_sentences_start_and_stop_and_padding_is_outside_the_loss() -> None:
    rows, tokenizer, data = sentence_rows()
    made = BatchSchedule(rows, Target.NEXT_TOKEN, TrainingConfig(batch_size=5), data, 6, 0, tokenizer)
    batch = made.batch(0)
    assert batch.attention_mask is not None
    for at, ids, labels, mask in zip(made.indices(0), batch.input_ids, batch.labels, batch.attention_mask, strict=True):
        text = [tokenizer.bos_id, *tokenizer.encode(TEXTS[at]), tokenizer.eos_id][:7]
        real = len(text) - 1
        # The stop is said, never read.
        assert ids[:real].tolist() == text[:-1]
        assert labels[:real].tolist() == text[1:]
        assert (labels[real:] == IGNORE_INDEX).all()
        assert mask.tolist() == [i < real for i in range(6)]
    assert rows.count_truncated(6) == 1
    assert rows.count_truncated(9) == 0


def test_sentences_need_a_start_and_a_stop() -> None:
    with pytest.raises(DataError, match="needs a start and a stop token"):
        encode_split(corpus().train, PLAIN, DataConfig(rows="sentences"), has_labels=False)


def test_unknown_words_are_a_share_that_inputs_and_labels_see_alike() -> None:
    plain, some = schedule(stream(3000), 32, batch_size=16), schedule(stream(3000), 32, batch_size=16, unknown=0.1)
    count = 0
    for step in range(20):
        clean, batch = plain.batch(step), some.batch(step)
        changed = batch.input_ids != clean.input_ids
        assert (batch.input_ids[changed] == PLAIN.unk_id).all()
        assert torch.equal(batch.input_ids[:, 1:], batch.labels[:, :-1])
        count += int(changed.sum())
    assert 0.08 < count / (20 * 16 * 32) < 0.12
    assert torch.equal(
        some.batch(3).input_ids, schedule(stream(3000), 32, batch_size=16, unknown=0.1).batch(3).input_ids
    )
    assert not torch.equal(some.batch(3).input_ids == 1, some.batch(4).input_ids == 1)


def test_padding_start_and_stop_never_become_unknown() -> None:
    rows, tokenizer, _ = sentence_rows()
    made = BatchSchedule(
        rows,
        Target.NEXT_TOKEN,
        TrainingConfig(batch_size=5),
        DataConfig(rows="sentences", word_dropout=0.99),
        20,
        0,
        tokenizer,
    )
    batch = made.batch(0)
    assert batch.attention_mask is not None
    assert (batch.input_ids[:, 0] == tokenizer.bos_id).all()
    assert (batch.input_ids[~batch.attention_mask] != tokenizer.unk_id).all()
    assert (batch.labels == tokenizer.eos_id).sum() == 5
    assert (batch.input_ids == tokenizer.unk_id).sum() > 10


def test_unknown_words_need_an_unknown_token() -> None:
    data = DataConfig.model_validate({"tokenizer": "bytes", "word_dropout": 0.1})
    tokenizer = train_tokenizer(data, corpus())
    with pytest.raises(DataError, match=r"data.word_dropout: the tokenizer \(bytes\) has no unknown token"):
        BatchSchedule(stream(100), Target.NEXT_TOKEN, TrainingConfig(), data, 8, 0, tokenizer)


def test_digest_tells_schedules_apart() -> None:
    def digest(length: int = 100, context: int = 8, seed: int = 0, steps: int = 10, **rest: object) -> str:
        return schedule(stream(length), context, seed, **rest).digest(steps)  # type: ignore[arg-type]

    assert digest() == digest()
    others = [
        digest(length=101),
        digest(context=9),
        digest(seed=1),
        digest(steps=11),
        digest(batch_size=5),
        digest(unknown=0.1),
    ]
    assert len({digest(), digest(sampling="shuffled"), *others}) == 8


@given(length=st.integers(2, 100), context=st.integers(1, 12), size=st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_every_token_but_the_first_is_predicted_exactly_once(length: int, context: int, size: int) -> None:
    made = build_evaluation_examples(stream(length), Target.NEXT_TOKEN, context, PLAIN)
    batches = list(made.batches(size))
    said = torch.cat([batch.labels[batch.labels != IGNORE_INDEX] for batch in batches])
    assert said.tolist() == list(range(1, length))
    counts = torch.cat([(batch.labels != IGNORE_INDEX).sum(1) for batch in batches])
    assert torch.equal(counts, made.tokens)
    assert made.count == len(counts) == -(-(length - 1) // context)
    for batch in batches:
        assert batch.input_ids.shape[1] == context
        real = batch.labels != IGNORE_INDEX
        assert torch.equal(batch.labels[real], batch.input_ids[real] + 1)
        assert torch.equal(batch.attention_mask, real) if batch.attention_mask is not None else real.all()


def test_examples_of_rows_keep_order_and_count_their_tokens() -> None:
    rows, tokenizer, _ = sentence_rows()
    made = build_evaluation_examples(rows, Target.NEXT_TOKEN, 6, tokenizer)
    batches = list(made.batches(2))
    assert [len(batch.labels) for batch in batches] == [2, 2, 1]
    assert made.tokens.tolist() == [min(6, len(text.split()) + 1) for text in TEXTS]
    assert torch.equal(torch.cat([(batch.labels != IGNORE_INDEX).sum(1) for batch in batches]), made.tokens)
    assert made.num_truncated == 1


def test_examples_of_a_classifier_are_its_rows() -> None:
    _, rows = classified(6)
    made = build_evaluation_examples(rows, Target.CLASS, 6, PLAIN)
    assert torch.cat([batch.labels for batch in made.batches(2)]).tolist() == [0, 1, 0, 1, 0]
    assert made.tokens.tolist() == [1] * 5


def test_rows_padded_to_their_batch_come_by_length_and_say_which_they_are() -> None:
    _, rows = classified(12)
    made = build_evaluation_examples(replace(rows, pad_to_longest=True), Target.CLASS, 12, PLAIN)
    batches = list(made.batches(2))
    at = torch.cat([batch.example_indices for batch in batches if batch.example_indices is not None])
    assert sorted(at.tolist()) == list(range(5))
    assert rows.lengths[at].tolist() == sorted(rows.lengths.tolist(), reverse=True)
    plain = list(build_evaluation_examples(rows, Target.CLASS, 12, PLAIN).batches(2))
    assert sum(batch.input_ids.numel() for batch in batches) < sum(batch.input_ids.numel() for batch in plain)
    assert rows.labels is not None
    assert torch.equal(torch.cat([batch.labels for batch in batches]), rows.labels[at])


def test_a_text_of_one_token_cannot_be_scored() -> None:
    with pytest.raises(DataError, match="train: the text has 1 tokens, and a score needs at least 2"):
        build_evaluation_examples(stream(1), Target.NEXT_TOKEN, 8, PLAIN)


def test_padding_does_not_depend_on_the_other_rows() -> None:
    _, rows = classified(12)
    alone = list(build_evaluation_examples(rows, Target.CLASS, 12, PLAIN).batches(1))
    together = next(build_evaluation_examples(rows, Target.CLASS, 12, PLAIN).batches(5))
    assert torch.equal(torch.cat([batch.input_ids for batch in alone]), together.input_ids)


def test_a_batch_moves_as_a_whole() -> None:
    _, rows = classified(6)
    moved = next(build_evaluation_examples(rows, Target.CLASS, 6, PLAIN).batches(2)).to("meta")
    assert moved.attention_mask is not None
    assert {moved.input_ids.device.type, moved.labels.device.type, moved.attention_mask.device.type} == {"meta"}


def fastest(made: BatchSchedule) -> float:
    """The shortest of many calls: what a batch costs, however busy the machine is."""
    times = []
    for step in range(300):
        start = time.perf_counter()
        made.batch(step)
        times.append(time.perf_counter() - start)
    return min(times)


def test_a_batch_costs_the_same_however_long_the_text() -> None:
    short, long = (fastest(schedule(stream(length), 32, batch_size=16)) for length in (1_000, 1_000_000))
    assert long < 2 * short
    assert long < 1e-3  # far above what it takes: types are checked while tests run
