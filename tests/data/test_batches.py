"""Batches are a pure function of (seed, step), cover each row once per epoch, and exclude padding from the loss."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headtohead.config.tables.data import DataConfig
from headtohead.config.tables.training import TrainingConfig
from headtohead.config.tasks import Target
from headtohead.data.batches import IGNORE_INDEX, BatchSchedule
from headtohead.data.encoding import TokenRows, TokenStream, encode_split, gather_token_ids
from headtohead.data.evaluation_examples import build_evaluation_examples
from headtohead.data.order import Order, OrderContext, TrainingItems
from headtohead.data.splits import Corpus, Split
from headtohead.data.tokenization.tokenizers import CorpusTokenizer, train_tokenizer
from headtohead.errors import DataError

VOCABULARY_ROW = " ".join(f"w{i}" for i in range(50))
ROWS = ("w1 w2 w3", "w4", "w5 w6 w7 w8 w9 w10 w11 w12", "w1 w13", "w2 w2 w2 w2 w2")


def build_corpus(task: str = "language-model", rows: tuple[str, ...] = ROWS) -> Corpus:
    labels = tuple(i % 2 for i in range(len(rows))) if task == "classify" else None
    split = Split("train", "train", rows, labels)
    return Corpus(task == "classify", {"train": split}, ("a", "b"), (VOCABULARY_ROW,), "here", "")


def build_tokenizer(task: str = "language-model", **data: object) -> CorpusTokenizer:
    return train_tokenizer(DataConfig.model_validate(data), build_corpus(task))


WORD_TOKENIZER = build_tokenizer()


def build_stream(length: int) -> TokenStream:
    """Return a stream in which every token equals its position, so that a block shows where it was taken from."""
    return TokenStream("train", torch.arange(length))


def build_schedule(
    encoded: TokenStream | TokenRows,
    context: int,
    seed: int = 0,
    target: Target = Target.NEXT_TOKEN,
    word_dropout: float = 0.0,
    **training: object,
) -> BatchSchedule:
    settings = TrainingConfig.model_validate({"batch_size": 4, **training})
    return BatchSchedule(
        encoded, target, settings, DataConfig(word_dropout=word_dropout), context, seed, WORD_TOKENIZER
    )


@pytest.mark.parametrize("sampling", ["random", "shuffled"])
def test_labels_are_the_next_tokens(sampling: str) -> None:
    schedule = build_schedule(build_stream(100), 8, order=sampling)
    for step in range(20):
        batch = schedule.get_batch(step)
        assert batch.input_ids.shape[1] == 8
        assert torch.equal(batch.labels, batch.input_ids + 1)
        assert torch.equal(batch.input_ids[:, 1:], batch.labels[:, :-1])
        assert batch.attention_mask is None


@pytest.mark.parametrize("sampling", ["random", "shuffled"])
def test_a_batch_depends_on_seed_and_step_alone(sampling: str) -> None:
    first, second = (
        build_schedule(build_stream(100), 8, order=sampling),
        build_schedule(build_stream(100), 8, order=sampling),
    )
    expected_ids = [first.get_batch(step).input_ids for step in range(30)]
    torch.manual_seed(5)
    for step in reversed(range(30)):
        assert torch.equal(second.get_batch(step).input_ids, expected_ids[step])
    assert any(
        not torch.equal(build_schedule(build_stream(100), 8, 1, order=sampling).get_batch(s).input_ids, expected_ids[s])
        for s in range(3)
    )


def test_random_blocks_reach_every_token() -> None:
    schedule = build_schedule(build_stream(30), 8)
    visited = {int(i) for step in range(200) for i in schedule.get_batch(step).labels.flatten()}
    assert visited == set(range(1, 30))


@given(length=st.integers(9, 200), context=st.integers(1, 8), batch=st.integers(1, 7), seed=st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_shuffled_sees_every_block_once_an_epoch(length: int, context: int, batch: int, seed: int) -> None:
    schedule = build_schedule(build_stream(length), context, seed, order="shuffled", batch_size=batch)
    for epoch in range(2):
        starts = torch.cat(
            [
                schedule.get_batch(epoch * schedule.steps_per_epoch + step).input_ids[:, 0]
                for step in range(schedule.steps_per_epoch)
            ]
        )
        assert len(starts) == schedule.training_items.count
        ordered = starts.sort().values
        assert torch.equal(ordered.diff(), torch.full((len(starts) - 1,), context))
        assert ordered[0] < context
        # Less than two blocks are left over, at either end.
        assert length - 1 - schedule.training_items.count * context < 2 * context


def test_phase_and_order_change_from_epoch_to_epoch() -> None:
    schedule = build_schedule(build_stream(500), 8, order="shuffled")
    firsts = {int(schedule.get_example_indices(epoch * schedule.steps_per_epoch)[0]) for epoch in range(20)}
    assert len({first % 8 for first in firsts}) > 3
    assert len(firsts) > 10


def test_shuffled_keeps_the_last_short_batch() -> None:
    schedule = build_schedule(build_stream(8 * 11), 8, order="shuffled")
    assert (schedule.training_items.count, schedule.steps_per_epoch) == (10, 3)
    assert [len(schedule.get_batch(step).input_ids) for step in range(4)] == [4, 4, 2, 4]


def test_an_epoch_of_random_blocks_is_as_long_as_the_text() -> None:
    assert build_schedule(build_stream(8 * 4 * 5 + 1), 8).steps_per_epoch == 5
    assert build_schedule(build_stream(8 * 4 * 5 + 2), 8).steps_per_epoch == 6


@pytest.mark.parametrize("sampling", ["random", "shuffled"])
def test_a_text_of_one_block_is_enough_and_a_shorter_one_is_rejected(sampling: str) -> None:
    assert torch.equal(build_schedule(build_stream(9), 8, order=sampling).get_batch(3).input_ids[0], torch.arange(8))
    with pytest.raises(
        DataError, match=r"train: the text has only 8 tokens, but a block of context 8 requires 9; add text"
    ):
        build_schedule(build_stream(8), 8, order=sampling)


def test_stream_is_the_rows_joined() -> None:
    split = encode_split(build_corpus().train, WORD_TOKENIZER, DataConfig(), has_labels=False)
    assert isinstance(split, TokenStream)
    assert split.token_ids.tolist() == WORD_TOKENIZER.encode(" ".join(ROWS))


def test_stream_of_characters_has_the_line_ends() -> None:
    data = DataConfig.model_validate({"tokenizer": "characters"})
    tokenizer = train_tokenizer(data, build_corpus())
    split = encode_split(build_corpus().train, tokenizer, data, has_labels=False)
    assert tokenizer.decode(split.token_ids.tolist()) == "\n".join(ROWS)


def build_classification_schedule(context: int, seed: int = 0, **training: object) -> tuple[BatchSchedule, TokenRows]:
    split = encode_split(build_corpus("classify").train, WORD_TOKENIZER, DataConfig(), has_labels=True)
    assert isinstance(split, TokenRows)
    return build_schedule(split, context, seed, Target.CLASS, **training), split


def test_classifier_rows_are_padded_on_the_right_to_the_context() -> None:
    schedule, rows = build_classification_schedule(6, batch_size=5)
    batch = schedule.get_batch(0)
    assert batch.input_ids.shape == (5, 6)
    assert batch.attention_mask is not None
    for row_index, ids, mask, label in zip(
        schedule.get_example_indices(0), batch.input_ids, batch.attention_mask, batch.labels, strict=True
    ):
        expected = WORD_TOKENIZER.encode(ROWS[row_index])[:6]
        assert ids[: len(expected)].tolist() == expected
        assert mask.tolist() == [i < len(expected) for i in range(6)]
        assert (ids[~mask] == WORD_TOKENIZER.pad_id).all()
        assert label == row_index % 2
    assert rows.count_truncated_rows(6) == 1


def test_every_row_comes_once_an_epoch_in_a_new_order() -> None:
    schedule, _ = build_classification_schedule(6, batch_size=2)
    assert schedule.steps_per_epoch == 3
    epochs = [
        torch.cat([schedule.get_example_indices(3 * epoch + step) for step in range(3)]).tolist() for epoch in range(6)
    ]
    assert all(sorted(epoch) == list(range(5)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 2
    assert len(schedule.get_batch(2).labels) == 1


def encode_sentences() -> tuple[TokenRows, CorpusTokenizer, DataConfig]:
    data = DataConfig(rows="sentences")
    tokenizer = build_tokenizer(rows="sentences")
    split = encode_split(build_corpus().train, tokenizer, data, has_labels=False)
    assert isinstance(split, TokenRows)
    return split, tokenizer, data


def test_sentences_start_and_stop_and_padding_is_outside_the_loss() -> None:
    rows, tokenizer, data = encode_sentences()
    batch_schedule = BatchSchedule(rows, Target.NEXT_TOKEN, TrainingConfig(batch_size=5), data, 6, 0, tokenizer)
    batch = batch_schedule.get_batch(0)
    assert batch.attention_mask is not None
    for row_index, ids, labels, mask in zip(
        batch_schedule.get_example_indices(0), batch.input_ids, batch.labels, batch.attention_mask, strict=True
    ):
        expected_ids = [tokenizer.bos_id, *tokenizer.encode(ROWS[row_index]), tokenizer.eos_id][:7]
        num_labels = len(expected_ids) - 1
        # The stop token is a label, never an input.
        assert ids[:num_labels].tolist() == expected_ids[:-1]
        assert labels[:num_labels].tolist() == expected_ids[1:]
        assert (labels[num_labels:] == IGNORE_INDEX).all()
        assert mask.tolist() == [i < num_labels for i in range(6)]
    assert rows.count_truncated_rows(6) == 1
    assert rows.count_truncated_rows(9) == 0


def test_sentences_need_a_start_and_a_stop() -> None:
    with pytest.raises(DataError, match="requires start and stop tokens"):
        encode_split(build_corpus().train, WORD_TOKENIZER, DataConfig(rows="sentences"), has_labels=False)


def test_unknown_words_are_a_share_that_inputs_and_labels_see_alike() -> None:
    plain, with_dropout = (
        build_schedule(build_stream(3000), 32, batch_size=16),
        build_schedule(build_stream(3000), 32, batch_size=16, word_dropout=0.1),
    )
    num_changed = 0
    for step in range(20):
        plain_batch, batch = plain.get_batch(step), with_dropout.get_batch(step)
        changed = batch.input_ids != plain_batch.input_ids
        assert (batch.input_ids[changed] == WORD_TOKENIZER.unk_id).all()
        assert torch.equal(batch.input_ids[:, 1:], batch.labels[:, :-1])
        num_changed += int(changed.sum())
    assert 0.08 < num_changed / (20 * 16 * 32) < 0.12
    assert torch.equal(
        with_dropout.get_batch(3).input_ids,
        build_schedule(build_stream(3000), 32, batch_size=16, word_dropout=0.1).get_batch(3).input_ids,
    )
    assert not torch.equal(with_dropout.get_batch(3).input_ids == 1, with_dropout.get_batch(4).input_ids == 1)


def test_padding_start_and_stop_never_become_unknown() -> None:
    rows, tokenizer, _ = encode_sentences()
    batch_schedule = BatchSchedule(
        rows,
        Target.NEXT_TOKEN,
        TrainingConfig(batch_size=5),
        DataConfig(rows="sentences", word_dropout=0.99),
        20,
        0,
        tokenizer,
    )
    batch = batch_schedule.get_batch(0)
    assert batch.attention_mask is not None
    assert (batch.input_ids[:, 0] == tokenizer.bos_id).all()
    assert (batch.input_ids[~batch.attention_mask] != tokenizer.unk_id).all()
    assert (batch.labels == tokenizer.eos_id).sum() == 5
    assert (batch.input_ids == tokenizer.unk_id).sum() > 10


def test_unknown_words_need_an_unknown_token() -> None:
    data = DataConfig.model_validate({"tokenizer": "bytes", "word_dropout": 0.1})
    tokenizer = train_tokenizer(data, build_corpus())
    with pytest.raises(DataError, match=r"data.word_dropout: the tokenizer \(bytes\) has no unknown token"):
        BatchSchedule(build_stream(100), Target.NEXT_TOKEN, TrainingConfig(), data, 8, 0, tokenizer)


def test_digest_tells_schedules_apart() -> None:
    def digest(length: int = 100, context: int = 8, seed: int = 0, steps: int = 10, **rest: object) -> str:
        return build_schedule(build_stream(length), context, seed, **rest).compute_digest(steps)  # type: ignore[arg-type]

    assert digest() == digest()
    others = [
        digest(length=101),
        digest(context=9),
        digest(seed=1),
        digest(steps=11),
        digest(batch_size=5),
        digest(word_dropout=0.1),
    ]
    assert len({digest(), digest(order="shuffled"), *others}) == 8


@given(length=st.integers(2, 100), context=st.integers(1, 12), size=st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_every_token_but_the_first_is_predicted_exactly_once(length: int, context: int, size: int) -> None:
    evaluation_examples = build_evaluation_examples(build_stream(length), Target.NEXT_TOKEN, context, WORD_TOKENIZER)
    batches = list(evaluation_examples.iter_batches(size))
    joined = torch.cat([batch.labels[batch.labels != IGNORE_INDEX] for batch in batches])
    assert joined.tolist() == list(range(1, length))
    counts = torch.cat([(batch.labels != IGNORE_INDEX).sum(1) for batch in batches])
    assert torch.equal(counts, evaluation_examples.prediction_counts)
    assert evaluation_examples.num_examples == len(counts) == -(-(length - 1) // context)
    for batch in batches:
        assert batch.input_ids.shape[1] == context
        is_predicted = batch.labels != IGNORE_INDEX
        assert torch.equal(batch.labels[is_predicted], batch.input_ids[is_predicted] + 1)
        assert (
            torch.equal(batch.attention_mask, is_predicted) if batch.attention_mask is not None else is_predicted.all()
        )


def test_examples_of_rows_keep_order_and_count_their_tokens() -> None:
    rows, tokenizer, _ = encode_sentences()
    evaluation_examples = build_evaluation_examples(rows, Target.NEXT_TOKEN, 6, tokenizer)
    batches = list(evaluation_examples.iter_batches(2))
    assert [len(batch.labels) for batch in batches] == [2, 2, 1]
    assert evaluation_examples.prediction_counts.tolist() == [min(6, len(text.split()) + 1) for text in ROWS]
    assert torch.equal(
        torch.cat([(batch.labels != IGNORE_INDEX).sum(1) for batch in batches]), evaluation_examples.prediction_counts
    )
    assert evaluation_examples.num_truncated_rows == 1


def test_examples_of_a_classifier_are_its_rows() -> None:
    _, rows = build_classification_schedule(6)
    evaluation_examples = build_evaluation_examples(rows, Target.CLASS, 6, WORD_TOKENIZER)
    assert torch.cat([batch.labels for batch in evaluation_examples.iter_batches(2)]).tolist() == [0, 1, 0, 1, 0]
    assert evaluation_examples.prediction_counts.tolist() == [1] * 5


def test_rows_padded_to_their_batch_come_by_length_and_say_which_they_are() -> None:
    _, rows = build_classification_schedule(12)
    evaluation_examples = build_evaluation_examples(
        replace(rows, pad_to_longest=True), Target.CLASS, 12, WORD_TOKENIZER
    )
    batches = list(evaluation_examples.iter_batches(2))
    indices = torch.cat([batch.example_indices for batch in batches if batch.example_indices is not None])
    assert sorted(indices.tolist()) == list(range(5))
    assert rows.row_lengths[indices].tolist() == sorted(rows.row_lengths.tolist(), reverse=True)
    plain = list(build_evaluation_examples(rows, Target.CLASS, 12, WORD_TOKENIZER).iter_batches(2))
    assert sum(batch.input_ids.numel() for batch in batches) < sum(batch.input_ids.numel() for batch in plain)
    assert rows.labels is not None
    assert torch.equal(torch.cat([batch.labels for batch in batches]), rows.labels[indices])


def test_a_text_of_one_token_cannot_be_scored() -> None:
    with pytest.raises(DataError, match="train: the text must have at least 2 tokens, got 1"):
        build_evaluation_examples(build_stream(1), Target.NEXT_TOKEN, 8, WORD_TOKENIZER)


def test_padding_does_not_depend_on_the_other_rows() -> None:
    _, rows = build_classification_schedule(12)
    alone = list(build_evaluation_examples(rows, Target.CLASS, 12, WORD_TOKENIZER).iter_batches(1))
    together = next(build_evaluation_examples(rows, Target.CLASS, 12, WORD_TOKENIZER).iter_batches(5))
    assert torch.equal(torch.cat([batch.input_ids for batch in alone]), together.input_ids)


def test_a_batch_moves_as_a_whole() -> None:
    _, rows = build_classification_schedule(6)
    moved = next(build_evaluation_examples(rows, Target.CLASS, 6, WORD_TOKENIZER).iter_batches(2)).to("meta")
    assert moved.attention_mask is not None
    assert {moved.input_ids.device.type, moved.labels.device.type, moved.attention_mask.device.type} == {"meta"}


def measure_fastest_batch(schedule: BatchSchedule) -> float:
    """Return the shortest time of many calls, which is insensitive to load from other processes."""
    times = []
    for step in range(300):
        start = time.perf_counter()
        schedule.get_batch(step)
        times.append(time.perf_counter() - start)
    return min(times)


def test_a_batch_costs_the_same_however_long_the_text() -> None:
    short, long = (
        measure_fastest_batch(build_schedule(build_stream(length), 32, batch_size=16)) for length in (1_000, 1_000_000)
    )
    assert long < 2 * short
    assert long < 1e-3  # far above what it takes: types are checked while tests run


def build_rows(lengths: list[int]) -> TokenRows:
    row_offsets = torch.tensor([0, *lengths]).cumsum(0)
    return TokenRows("train", torch.arange(int(row_offsets[-1])), row_offsets)


def test_a_curriculum_begins_with_the_short_rows_and_then_shuffles() -> None:
    lengths = [5, 2, 7, 3, 8, 4, 6, 9]
    schedule = build_schedule(build_rows(lengths), 8, order={"kind": "curriculum", "epochs": 1})
    first, second = (torch.cat([schedule.get_example_indices(step) for step in steps]) for steps in ((0, 1), (2, 3)))
    assert [lengths[i] for i in first] == sorted(lengths)
    assert sorted(second.tolist()) == list(range(8)) and [lengths[i] for i in second] != sorted(lengths)


def test_sequences_grow_to_the_context() -> None:
    order = {"kind": "length-warmup", "steps": 6, "start": 2}
    schedule, plain = build_schedule(build_stream(100), 8, order=order), build_schedule(build_stream(100), 8)
    assert [schedule.get_batch(step).input_ids.shape[1] for step in range(8)] == [2, 3, 4, 5, 6, 7, 8, 8]
    for step in range(8):
        length = schedule.get_batch(step).input_ids.shape[1]
        assert torch.equal(schedule.get_batch(step).input_ids, plain.get_batch(step).input_ids[:, :length])
        assert torch.equal(schedule.get_batch(step).labels, plain.get_batch(step).labels[:, :length])
    padded = build_schedule(build_rows([9] * 8), 8, order=order)
    assert padded.get_batch(1).input_ids.shape[1] == 3


def test_documents_are_reordered_in_every_epoch_and_stay_whole() -> None:
    documents = torch.tensor([0, 0, 1, 2, 2, 3])
    offsets = torch.tensor([0, 5, 9, 17, 20, 26, 30])
    text = TokenStream("train", torch.arange(30), row_offsets=offsets, row_documents=documents)
    schedule = build_schedule(text, 3, order="documents", batch_size=3)
    epochs = []
    for epoch in (0, 1):
        steps = range(epoch * schedule.steps_per_epoch, (epoch + 1) * schedule.steps_per_epoch)
        blocks = torch.cat([schedule.get_example_indices(step) for step in steps])
        assert len(blocks) == schedule.training_items.count and len({int(block[0]) for block in blocks}) == len(blocks)
        breaks = {(int(a), int(b)) for block in blocks for a, b in itertools.pairwise(block) if b != a + 1}
        assert {a + 1 for a, _ in breaks} <= {9, 17, 26, 30} and {b for _, b in breaks} <= {0, 9, 17, 26}
        epochs.append(breaks)
    assert epochs[0] != epochs[1]
    assert torch.equal(
        schedule.get_batch(0).labels,
        schedule.get_batch(0).input_ids.roll(-1, 1).where(torch.arange(3) < 2, schedule.get_batch(0).labels),
    )


@pytest.mark.parametrize("order", ["by-length", "curriculum"])
def test_lengths_of_blocks_are_not_compared(order: str) -> None:
    with pytest.raises(DataError, match=f"training.order: {order} sorts rows by length"):
        build_schedule(build_stream(100), 8, order=order)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.int64])
def test_cached_tokens_of_unsigned_types_are_selected_in_every_version_of_torch(dtype: torch.dtype) -> None:
    """torch 2.6 to 2.9 cannot index them, so the tokens are viewed as signed integers."""
    largest = 2**16 - 1 if dtype == torch.uint16 else 2**31 + 5
    tokens = torch.tensor([0, largest, 7, 40_000]).to(dtype)
    indices = torch.tensor([[1, 3], [2, 0]])
    assert gather_token_ids(tokens, indices).tolist() == [[largest, 40_000], [7, 0]]
    assert gather_token_ids(tokens.unfold(0, 2, 1), torch.tensor([2, 0])).tolist() == [[7, 40_000], [0, largest]]
    assert gather_token_ids(tokens, indices).dtype == torch.int64


class ListOrder(Order):
    """Returns the first rows as a list."""

    def __init__(self, *, num_rows: int) -> None:
        self.num_rows = num_rows

    def order_epoch(self, items: TrainingItems, context: OrderContext) -> Any:
        return list(range(self.num_rows))


def test_an_order_may_return_a_list_and_must_return_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = encode_split(build_corpus("classify").train, WORD_TOKENIZER, DataConfig(), has_labels=True)
    schedule = build_schedule(rows, 8, target=Target.CLASS)
    monkeypatch.setattr(schedule, "order", ListOrder(num_rows=5))
    assert schedule.get_example_indices(1).tolist() == [4]
    schedule = build_schedule(rows, 8, target=Target.CLASS)
    monkeypatch.setattr(schedule, "order", ListOrder(num_rows=4))
    with pytest.raises(DataError, match="returned 4 of 5 rows or blocks, so step 2 has no batch"):
        schedule.get_example_indices(1)
