"""Length generalization: joining rows preserves their tokens, and a window reduces the cost."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headtohead.config.tables import model
from headtohead.data.encoding import TokenRows
from headtohead.tasks.classification import join_rows_by_class
from headtohead.trials.length_generalization import measure_costs_at_lengths


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2)), min_size=1, max_size=30), st.integers(1, 30))
def test_joined_rows_keep_every_token_of_every_class_and_their_length(rows, length):
    sizes, labels = [size for size, _ in rows], torch.tensor([label for _, label in rows])
    tokens = torch.arange(sum(sizes))
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    result = join_rows_by_class(TokenRows("test", tokens, offsets, labels), length)
    for label in range(3):
        before = torch.cat(
            [tokens[offsets[i] : offsets[i + 1]] for i in range(len(rows)) if labels[i] == label] or [tokens[:0]]
        )
        after = [
            result.token_ids[result.row_offsets[i] : result.row_offsets[i + 1]]
            for i in range(len(result))
            if result.labels[i] == label
        ]
        assert torch.equal(torch.cat(after or [tokens[:0]]), before)
    assert all(size <= max(length, *sizes) for size in result.row_lengths.tolist())


def test_memory_of_a_window_does_not_grow_with_the_context_and_that_of_explicit_attention_does():
    def bytes_at(model: model.TransformerConfig) -> list[float]:
        return [row.bytes_per_token for row in measure_costs_at_lengths(model, 50, None, (64, 512))]

    sizes = {"width": 16, "layers": 1, "heads": 2, "position": "none"}
    window = bytes_at(model.TransformerConfig.model_validate({**sizes, "pattern": {"kind": "window", "size": 8}}))
    full = bytes_at(model.TransformerConfig.model_validate({**sizes, "position": "alibi"}))
    assert window[1] < 1.5 * window[0]
    assert full[1] > window[1]
