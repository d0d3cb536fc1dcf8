"""Generation: the same text with a cache and without, alone and in a batch, and as transformers writes it."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import headtohead as h2h
from headtohead.config import model as config_model
from headtohead.data import tokenizers
from headtohead.data.tokenizers import CorpusTokenizer
from headtohead.errors import ModelError, RequestError, StrategyError
from headtohead.generation import generate, logits_processors, strategies, trace
from headtohead.generation.generate import ContextOverflowWarning, Continuation
from headtohead.generation.session import DecodingSession, left_pad
from headtohead.model_factory import build_model
from headtohead.nn.custom_model import CustomModel
from headtohead.nn.parts import block, norm, registry
from headtohead.nn.transformer import Transformer
from headtohead.pretrained.loading import PretrainedModel

from .conftest import VOCAB

Ours = Callable[..., Transformer]
Theirs = Callable[[str], PretrainedModel]


def prompts(count: int, seed: int = 0, shortest: int = 1, longest: int = 14) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(shortest, longest + 1, (count,), generator=generator).tolist()
    return [torch.randint(1, VOCAB, (length,), generator=generator).tolist() for length in lengths]


def ids_of(made: list[Continuation]) -> list[tuple[int, ...]]:
    return [one.ids for one in made]


# ---- cached equals uncached, for every part


def every_part() -> Iterator[Any]:
    needed = {("pattern", "window"): {"size": 3}}
    for made in registry.list_part_classes():
        if made.slot == "pool":  # a decoder has none
            continue
        choice = {"kind": made.kind, **needed.get((made.slot, made.kind), {})}
        yield pytest.param({made.slot: choice}, id=f"{made.slot}-{made.kind}")
    together = {
        "position": ["alibi", "rope"],
        "block": "post",
        "norm": "rms",
        "feedforward": "swiglu",
        "projection": {"kind": "linear", "key_heads": 2, "bias": True},
        "pattern": {"kind": "window", "size": 5},
        "merge": "causal-reweight",
    }
    yield pytest.param(together, id="many-at-once")
    yield pytest.param({"projection": {"kind": "linear", "key_heads": 1}, "position": "rope"}, id="one-key-head")
    yield pytest.param({"position": {"kind": "rope", "fraction": 0.5}, "tie_word_embeddings": True}, id="half-turned")
    yield pytest.param({"embedding_norm": True, "final_norm": True}, id="norms-all-over")


@pytest.mark.parametrize("settings", list(every_part()))
def test_reading_token_by_token_gives_the_logits_of_one_pass_for_every_part(
    settings: dict[str, Any], ours: Ours
) -> None:
    model = ours(**settings).double()  # where what should be equal is equal to the last digits
    texts = [row[:9] for row in prompts(3, shortest=9)]
    ragged = [texts[0], texts[1][:4], texts[2][:6]]
    more = prompts(3, seed=5, shortest=6, longest=6)
    for rows in ([texts[0]], texts, ragged):
        if len({len(row) for row in rows}) > 1 and not model.can_pad:
            continue
        if "determinism" in model.violates or ("batch-independence" in model.violates and len(rows) > 1):
            continue
        reader = DecodingSession(model, rows)
        for step in range(6):
            reader.append_tokens([more[i][step] for i in range(len(rows))])
            for i, row in enumerate(rows):
                with torch.no_grad():
                    whole = model(torch.tensor([row + more[i][: step + 1]])).logits[0, -1]
                assert (reader.logits[i] - whole).abs().max() < 1e-10 * whole.abs().max()


def test_the_quick_road_is_taken_by_composed_attention_and_by_no_other(ours: Ours) -> None:
    class Other(block.Block):
        def __init__(self, inner: block.Block) -> None:
            torch.nn.Module.__init__(self)
            self.inner = inner

        def forward(self, x: Tensor, attend: Any, feed: Any) -> Tensor:
            found: Tensor = self.inner(x, attend, feed)
            return found

    model = ours()
    cache = model.create_cache()
    assert cache is not None
    assert type(model.build_decode_step(cache)).__name__ == "FastDecoder"
    model.layers[1].block = Other(model.layers[1].block)  # type: ignore[union-attr, arg-type]
    slow = model.build_decode_step(cache)
    assert type(slow).__name__ == "partial"
    reader = DecodingSession(model, [[3, 4, 5]])
    reader.append_tokens([6])
    with torch.no_grad():
        assert torch.allclose(reader.logits, model(torch.tensor([[3, 4, 5, 6]])).logits[:, -1], atol=1e-5)


def test_an_unknown_part_is_called_as_the_module_it_is(ours: Ours) -> None:
    class Louder(norm.Norm):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * x

    model = ours().double()  # without a norm logits reach 80: float32 rounds them off by more than is tried here
    model.final_norm = Louder(model.sizes)
    reader = DecodingSession(model, [[3, 4, 5]])
    reader.append_tokens([6])
    cache = model.create_cache()
    assert cache is not None
    assert type(model.build_decode_step(cache)).__name__ == "FastDecoder"
    with torch.no_grad():
        whole = model(torch.tensor([[3, 4, 5, 6]])).logits[:, -1]
    assert torch.allclose(reader.logits, whole, atol=1e-5)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_cached_decoding_equals_uncached_for_pretrained_models(kind: str, theirs: Theirs) -> None:
    model = theirs(kind)
    rows, more = prompts(3), prompts(3, seed=5, shortest=6, longest=6)
    reader = DecodingSession(model, rows)
    for step in range(6):
        reader.append_tokens([row[step] for row in more])
        for i, row in enumerate(rows):
            with torch.no_grad():
                whole = model(torch.tensor([row + more[i][: step + 1]])).logits[0, -1]
            assert (reader.logits[i] - whole).abs().max() < 2e-5 * whole.abs().max()


@pytest.mark.parametrize("name", ["greedy", "sample", "top-p", "beam", "contrastive"])
def test_without_a_cache_the_same_text_is_written(name: str, ours: Ours, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ours(position="rope")
    expected = ids_of(h2h.generate(model, prompts(2), name, max_new_tokens=8))
    monkeypatch.setattr(Transformer, "create_cache", lambda self: None)
    assert ids_of(h2h.generate(model, prompts(2), name, max_new_tokens=8)) == expected


# ---- alone and in a batch


@pytest.mark.parametrize("name", ["sample", "top-p", "top-k", "typical", "greedy"])
@pytest.mark.parametrize("kind", ["ours", "gpt2", "llama"])
@pytest.mark.usefixtures("unchecked")
def test_a_prompt_gives_the_same_samples_alone_and_in_a_batch_of_32(
    name: str, kind: str, ours: Ours, theirs: Theirs
) -> None:
    model = ours(position=["alibi", "rope"]) if kind == "ours" else theirs(kind)
    texts = prompts(32)
    assert len({len(text) for text in texts}) > 8  # so that there is padding
    together = h2h.generate(model, texts, name, max_new_tokens=12, seed=3, stop=7)
    assert [one.prompt for one in together] == list(range(32))
    for index in (0, 5, 17, 31):
        (alone,) = h2h.generate(model, [texts[index]], name, max_new_tokens=12, seed=3, stop=7)
        assert alone.ids == together[index].ids
        assert alone.finish_reason == together[index].finish_reason


def test_samples_do_not_depend_on_how_many_there_are_or_how_they_are_batched(ours: Ours) -> None:
    model, texts = ours(), prompts(4)
    ten = h2h.generate(model, texts, "top-p", num_samples=10, max_new_tokens=9)
    assert len({one.ids for one in ten if one.prompt == 0}) > 5
    three = h2h.generate(model, texts, "top-p", num_samples=3, max_new_tokens=9, batch_size=5)
    assert ids_of(three) == [one.ids for one in ten if one.sample < 3]
    longer = h2h.generate(model, texts, "top-p", num_samples=3, max_new_tokens=12)
    assert [one.ids[:9] for one in longer] == ids_of(three)


def test_another_seed_gives_other_samples_and_the_same_seed_the_same(ours: Ours) -> None:
    model, texts = ours(), prompts(3)
    one, again, other = (ids_of(h2h.generate(model, texts, "sample", seed=seed)) for seed in (0, 0, 1))
    assert one == again
    assert all(a != b for a, b in zip(one, other, strict=True))


def test_a_model_whose_rows_see_each_other_writes_each_text_by_itself(ours: Ours) -> None:
    model = ours(merge={"kind": "reweight", "over": "batch"})
    texts = prompts(5)
    together = h2h.generate(model, texts, "sample", max_new_tokens=5)
    alone = [h2h.generate(model, [text], "sample", max_new_tokens=5)[0] for text in texts]
    assert ids_of(together) == ids_of(alone)
    with pytest.raises(ModelError, match="the rows of a batch influence each other"):
        h2h.generate(model, texts, "beam", max_new_tokens=5)


def test_a_model_that_does_not_mask_padding_is_given_none(ours: Ours) -> None:
    model = ours(mask_padding=False)
    texts = prompts(6)
    together = h2h.generate(model, texts, "sample", max_new_tokens=5)
    alone = [h2h.generate(model, [text], "sample", max_new_tokens=5)[0] for text in texts]
    assert ids_of(together) == ids_of(alone)


def test_a_network_of_the_users_own_writes_as_well(tmp_path: Any) -> None:
    (tmp_path / "mine.py").write_text(
        """
import torch
class Mine(torch.nn.Module):
    def __init__(self, vocab_size):
        super().__init__()
        self.table = torch.nn.Embedding(vocab_size, vocab_size)
    def forward(self, idx):
        return self.table(idx).cumsum(1)
"""
    )
    own = config_model.CustomModelConfig.model_validate({"module": "mine.py:Mine", "context": 16})
    model = build_model(own, VOCAB, base_folder=tmp_path)
    assert isinstance(model, CustomModel)
    texts = prompts(4)
    together = h2h.generate(model, texts, "top-p", max_new_tokens=6)
    alone = [h2h.generate(model, [text], "top-p", max_new_tokens=6)[0] for text in texts]
    assert ids_of(together) == ids_of(alone)
    with pytest.raises(ModelError, match="does not return"):
        h2h.generate(model, texts, "contrastive", max_new_tokens=6)


def test_rows_of_different_length_end_together_with_padding_on_the_left() -> None:
    ids, mask = left_pad([[1, 2, 3], [4]], torch.device("cpu"))
    assert ids.tolist() == [[1, 2, 3], [0, 0, 4]]
    assert mask is not None
    assert mask.tolist() == [[True, True, True], [False, False, True]]
    assert left_pad([[1], [2]], torch.device("cpu"))[1] is None


# ---- as transformers writes it


def reference(model: PretrainedModel, prompt: list[int], stop: Sequence[int] = (0,), **how: Any) -> list[list[int]]:
    ids = torch.tensor([prompt])
    fixed = {"do_sample": False, "pad_token_id": stop[0], "eos_token_id": list(stop), "max_new_tokens": 20}
    made = model.inner.generate(ids, attention_mask=torch.ones_like(ids), **fixed, **how)
    rows = [row[len(prompt) :] for row in made.tolist()]
    return [row[: next((i for i, token in enumerate(row) if token in stop), None)] for row in rows]


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_greedy_is_token_for_token_what_transformers_gives(kind: str, theirs: Theirs) -> None:
    model = theirs(kind)
    for prompt in prompts(6):
        (made,) = h2h.generate(model, [prompt], "greedy", max_new_tokens=20, stop=0)
        assert [list(made.ids)] == reference(model, prompt)


def test_penalties_are_token_for_token_what_transformers_gives(theirs: Theirs) -> None:
    model = theirs("gpt2")
    options = {"repetition_penalty": 1.4, "no_repeat_ngram": 2, "ban": [[5], [8, 9]], "min_new_tokens": 4}
    how = {
        "repetition_penalty": 1.4,
        "no_repeat_ngram_size": 2,
        "bad_words_ids": [[5], [8, 9]],
        "min_new_tokens": 4,
    }
    for prompt in prompts(4):
        (made,) = h2h.generate(
            model, [prompt], strategies.build_strategy("greedy", **options), max_new_tokens=20, stop=0
        )
        assert [list(made.ids)] == reference(model, prompt, **how)


# ---- the end of a text


ROWS = ("the cat sat on the mat .", "a dog and a cat ran home , did n't they ?", 'he said " no " and left')


def words(*, ends: bool = False) -> CorpusTokenizer:
    return CorpusTokenizer(tokenizers.train_word_tokenizer(ROWS, add_bos_eos=ends))


class Parrot(torch.nn.Module):
    """Says one text over and over, whatever it is asked: a model whose every word is known."""

    context, can_pad = 1000, True

    def __init__(self, says: list[int], vocab: int) -> None:
        super().__init__()
        self.says, self.vocab = says, vocab

    def create_cache(self) -> None:
        return None

    def build_decode_step(self, cache: Any) -> Any:
        raise AssertionError("there is no cache")

    def next_token_logits(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, *, cache: Any = None
    ) -> Tensor:
        seen = torch.ones_like(input_ids) if attention_mask is None else attention_mask.long()
        logits = torch.zeros(len(input_ids), self.vocab)
        for row, length in enumerate((seen.sum(1) - 1).tolist()):
            logits[row, self.says[length % len(self.says)]] = 50.0
        return logits


def parrot(text: str, tokenizer: Any) -> Parrot:
    return Parrot(tokenizer.encode(text), tokenizer.vocab_size)


def test_it_ends_at_the_stop_token_which_is_not_part_of_the_text() -> None:
    tokenizer = words(ends=True)
    assert tokenizer.eos_id is not None
    model = Parrot([*tokenizer.encode("the cat sat"), tokenizer.eos_id], tokenizer.vocab_size)
    (made,) = h2h.generate(model, [[1]], "greedy", tokenizer=tokenizer)
    assert (made.text, made.finish_reason, len(made.ids)) == (" the cat sat", "token", 3)
    (forced,) = h2h.generate(model, [[1]], strategies.build_strategy("greedy", force_stop=2), tokenizer=tokenizer)
    assert (forced.text, forced.finish_reason) == (" the", "token")
    (late,) = h2h.generate(
        model, [[1]], strategies.build_strategy("greedy", min_new_tokens=5), tokenizer=tokenizer, max_new_tokens=6
    )
    assert (len(late.ids), late.finish_reason) == (6, "length")


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ("mat", " the cat sat on the "),
        ([" sat on", "mat"], " the cat"),
        ("at s", " the c"),
        ("dog", " the cat sat on the mat. the"),
    ],
)
def test_it_ends_at_a_string_wherever_that_begins(stop: Any, text: str) -> None:
    tokenizer = words()
    model = parrot("the cat sat on the mat .", tokenizer)
    (made,) = h2h.generate(model, [[3]], "greedy", tokenizer=tokenizer, stop=stop, max_new_tokens=8)
    assert made.text == text
    assert made.finish_reason == ("length" if stop == "dog" else "string")
    kept = tokenizer.decode(made.ids)
    assert kept.startswith(text.strip()) or text.strip().startswith(kept)


def test_it_ends_at_a_token_of_ones_own_choice(ours: Ours) -> None:
    model = ours()
    (whole,) = h2h.generate(model, [[5, 6]], "sample", max_new_tokens=20)
    stop = whole.ids[7]
    (made,) = h2h.generate(model, [[5, 6]], "sample", max_new_tokens=20, stop=stop)
    assert made.ids == whole.ids[: whole.ids.index(stop)]
    assert made.finish_reason == "token"


# ---- text as it is made


@pytest.mark.parametrize("kind", ["words", "bytes"])
@pytest.mark.parametrize("stop", [(), ("cat ran",), ("ömlich",)])
def test_pieces_joined_are_the_text(kind: str, stop: tuple[str, ...]) -> None:
    tokenizer = words() if kind == "words" else CorpusTokenizer(tokenizers.build_byte_tokenizer([]))
    said = "a dog and a cat ran home , did n't they ?" if kind == "words" else "nämlich ströhmt — ☃ ömlich!"
    model = parrot(said, tokenizer)
    (made,) = h2h.generate(model, [[1]], "greedy", tokenizer=tokenizer, stop=stop, max_new_tokens=30)
    pieces = list(generate.stream_generate(model, [[1]], "greedy", tokenizer=tokenizer, stop=stop, max_new_tokens=30))
    assert "".join(piece.text for piece in pieces) == made.text
    assert len(pieces) > 5
    assert [piece.finish_reason for piece in pieces][:-1] == [None] * (len(pieces) - 1)
    assert pieces[-1].finish_reason == made.finish_reason
    if kind == "bytes":
        assert all("\ufffd" not in piece.text for piece in pieces[:-1])


def test_the_space_between_prompt_and_continuation_is_part_of_it() -> None:
    tokenizer = words()
    model = parrot("mat . cat", tokenizer)
    (made,) = h2h.generate(model, ["the"], "greedy", tokenizer=tokenizer, max_new_tokens=3)
    assert made.text == " mat. cat"


def test_a_stream_gives_its_first_piece_before_the_last_token_is_made(ours: Ours) -> None:
    model = ours()
    asked = 0
    plain = model.next_token_logits

    def counted(*given: Any, **named: Any) -> Tensor:
        nonlocal asked
        asked += 1
        return plain(*given, **named)

    model.next_token_logits = counted  # type: ignore[method-assign]
    pieces = generate.stream_generate(model, [[5, 6]], "sample", max_new_tokens=20)
    next(pieces)
    assert asked == 1
    assert len(list(pieces)) == 19


def test_watching_shows_what_was_there_to_choose_from(ours: Ours) -> None:
    model = ours()
    chosen = strategies.build_strategy("top-p", p=0.6)
    made = h2h.generate(model, [[5, 6]], chosen, num_samples=3, max_new_tokens=8)[2]
    moments = list(trace.trace_generation(model, [5, 6], chosen, sample_index=2, max_new_tokens=8))
    assert tuple(moment.token for moment in moments) == made.ids
    for moment in moments:
        assert moment.strategy_probs[moment.token] > moment.model_probs[moment.token] > 0
        assert moment.model_probs.sum().item() == pytest.approx(1, abs=1e-5)
        assert moment.strategy_probs.sum().item() == pytest.approx(1, abs=1e-5)
        assert moment.model_probs[moment.strategy_probs > 0].sum() >= 0.6 - 1e-6


# ---- longer than the context


@pytest.mark.parametrize("position", ["learned", "rope"])
def test_a_text_longer_than_the_context_slides_with_a_warning(position: str, ours: Ours) -> None:
    model = ours(context=16, position=position)
    texts = prompts(4, shortest=3, longest=30)
    with pytest.warns(ContextOverflowWarning, match="longer than the model's context of 16 tokens.* 4 at a time"):
        together = h2h.generate(model, texts, "top-p", max_new_tokens=40)
    assert [len(one.ids) for one in together] == [40] * 4
    for index, text in enumerate(texts):
        with pytest.warns(ContextOverflowWarning):
            (alone,) = h2h.generate(model, [text], "top-p", max_new_tokens=40)
        assert alone.ids == together[index].ids


def test_a_sliding_text_is_read_as_the_last_tokens_alone_would_be(ours: Ours) -> None:
    model = ours(context=16)
    reader = DecodingSession(model, [list(range(1, 16))])
    for token in range(16, 40):
        reader.append_tokens([token])
        window = reader.rows[0][reader._window_starts[0] :]
        assert 12 < len(window) <= 16
        with torch.no_grad():
            assert torch.allclose(reader.logits, model(torch.tensor([window])).logits[:, -1], atol=1e-5)


def test_a_text_that_fits_slides_without_a_word(ours: Ours) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        h2h.generate(ours(context=16), [[1, 2, 3]], "sample", max_new_tokens=13)


@pytest.mark.parametrize("name", ["beam", "contrastive"])
def test_searches_slide_as_well(name: str, ours: Ours) -> None:
    with pytest.warns(ContextOverflowWarning):
        (made,) = h2h.generate(ours(context=12), [[1, 2, 3]], name, max_new_tokens=20)
    assert len(made.ids) == 20


# ---- what is refused


def test_an_empty_prompt_begins_with_the_start_token_or_is_refused() -> None:
    with_start, without = words(ends=True), words()
    assert with_start.bos_id is not None
    (made,) = h2h.generate(parrot("the cat", with_start), "", "greedy", tokenizer=with_start, max_new_tokens=2)
    assert made.text == "the cat"
    with pytest.raises(ModelError, match="the prompt is empty and the model has no start token"):
        h2h.generate(parrot("the cat", without), "", "greedy", tokenizer=without)
    with pytest.raises(ModelError, match="the prompt is empty: give at least one token"):
        h2h.generate(parrot("the cat", without), [[]], "greedy")


@pytest.mark.usefixtures("unchecked")
def test_impossible_requests_are_refused_in_words(ours: Ours) -> None:
    model = ours()
    classifier = build_model(config_model.TransformerConfig.model_validate({"width": 16, "heads": 2}), VOCAB, 3)
    for said, call in (
        ("num_samples must be an integer of at least 1, got 0", lambda: h2h.generate(model, [[1]], num_samples=0)),
        ("max_new_tokens must be an integer", lambda: h2h.generate(model, [[1]], max_new_tokens=0)),
        ("a text prompt requires a tokenizer", lambda: h2h.generate(model, "hello")),
        ("the stop string 'x' requires a tokenizer", lambda: h2h.generate(model, [[1]], stop="x")),
        ("a classifier cannot generate text", lambda: h2h.generate(classifier, [[1]])),
        ("a Linear cannot generate text", lambda: h2h.generate(torch.nn.Linear(2, 2), [[1]])),
        (
            "chat requires a pretrained model",
            lambda: h2h.generate(model, "x", tokenizer=words(), use_chat_template=True),
        ),
    ):
        with pytest.raises(RequestError, match=said):
            call()
    with pytest.raises(StrategyError, match="3 samples require at least as many beams, got 2"):
        h2h.generate(model, [[1]], strategies.build_strategy("beam", beams=2), num_samples=3)


def test_banned_texts_are_not_written() -> None:
    tokenizer = words()
    model = parrot("the cat sat", tokenizer)
    ban = strategies.build_strategy("greedy", ban=["cat"])
    (made,) = h2h.generate(model, [[1]], ban, tokenizer=tokenizer, max_new_tokens=3)
    assert "cat" not in made.text
    assert made.text.startswith(" the ")


def test_a_model_in_training_is_left_as_it_was(ours: Ours) -> None:
    model = ours(dropout=0.5).train()
    one = h2h.generate(model, [[1, 2]], "sample", max_new_tokens=5)
    assert model.training
    assert ids_of(h2h.generate(model.eval(), [[1, 2]], "sample", max_new_tokens=5)) == ids_of(one)


def test_steps_of_ones_own_are_composed_in_a_list(ours: Ours) -> None:
    def even(logits: Tensor, seen: logits_processors.GenerationState) -> Tensor:
        return logits.masked_fill(torch.arange(logits.shape[-1]) % 2 == 1, -torch.inf)

    (made,) = h2h.generate(ours(), [[1]], [even, logits_processors.TopPLogitsProcessor(0.9)], max_new_tokens=30)
    assert all(token % 2 == 0 for token in made.ids)


def test_one_prompt_of_a_trial_is_continued_in_silence(ours: Ours) -> None:
    model = ours(context=16)
    made = generate.sample_continuation_ids(model, [1, 2, 3], 30, seed=4)
    assert len(made) == 30
    assert (
        generate.sample_continuation_ids(model, [1, 2, 3], 30, seed=4, stop_token_id=made[9])
        == made[: made.index(made[9])]
    )
    with pytest.raises(ModelError, match="the prompt is empty"):
        generate.sample_continuation_ids(model, [], 30, seed=4)
