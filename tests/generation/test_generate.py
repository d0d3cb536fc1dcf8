"""Generated text is the same with and without a cache, alone and in a batch, and equals that of transformers."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import headtohead as h2h
from headtohead.config.tables import model as config_model
from headtohead.data.tokenization import tokenizers
from headtohead.data.tokenization.tokenizers import CorpusTokenizer
from headtohead.errors import ModelError, RequestError, StrategyError
from headtohead.generation import generate, logits_processors, strategies, trace
from headtohead.generation.generate import Continuation
from headtohead.generation.session import ContextOverflowWarning, DecodingSession, left_pad
from headtohead.model_factory import build_model
from headtohead.nn.custom_model import CustomModel
from headtohead.nn.parts import block, norm, registry
from headtohead.nn.parts.context import ForwardContext
from headtohead.nn.transformer import Transformer
from headtohead.pretrained.pretrained_model import PretrainedModel

from .conftest import VOCAB

Ours = Callable[..., Transformer]
Theirs = Callable[[str], PretrainedModel]


def draw_prompts(num_prompts: int, seed: int = 0, min_length: int = 1, max_length: int = 14) -> list[list[int]]:
    """Return random token ids of several prompts."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(min_length, max_length + 1, (num_prompts,), generator=generator).tolist()
    return [torch.randint(1, VOCAB, (length,), generator=generator).tolist() for length in lengths]


def get_token_ids(continuations: list[Continuation]) -> list[tuple[int, ...]]:
    return [continuation.ids for continuation in continuations]


# ---- cached equals uncached, for every part


def list_part_settings() -> Iterator[Any]:
    required_options = {
        ("pattern", "window"): {"size": 3},
        ("output", "scale"): {"by": 2.0},
        ("projection", "query-scale"): {"by": 2.0},
    }
    first_parts = {"embedding": "table", "projection": "linear", "output": "linear"}
    for part_class in registry.list_part_classes():
        if part_class.slot == "pool" or part_class.slot in registry.TRAINING_SLOTS:  # a decoder has none
            continue
        config: Any = {"kind": part_class.kind, **required_options.get((part_class.slot, part_class.kind), {})}
        if registry.is_step_class(part_class):
            config = [first_parts[part_class.slot], config]
        yield pytest.param({part_class.slot: config}, id=f"{part_class.slot}-{part_class.kind}")
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


@pytest.mark.parametrize("settings", list(list_part_settings()))
def test_cached_decoding_gives_the_logits_of_one_pass_for_every_part(settings: dict[str, Any], ours: Ours) -> None:
    model = ours(**settings).double()  # in float64, equal results agree to the last digits
    equal_lengths = [prompt[:9] for prompt in draw_prompts(3, min_length=9)]
    different_lengths = [equal_lengths[0], equal_lengths[1][:4], equal_lengths[2][:6]]
    new_tokens = draw_prompts(3, seed=5, min_length=6, max_length=6)
    for batch in ([equal_lengths[0]], equal_lengths, different_lengths):
        if len({len(prompt) for prompt in batch}) > 1 and not model.can_pad:
            continue
        if "determinism" in model.violates or ("batch-independence" in model.violates and len(batch) > 1):
            continue
        session = DecodingSession(model, batch)
        for step in range(6):
            session.append_tokens([new_tokens[i][step] for i in range(len(batch))])
            for i, prompt in enumerate(batch):
                with torch.no_grad():
                    expected = model(torch.tensor([prompt + new_tokens[i][: step + 1]])).logits[0, -1]
                assert (session.logits[i] - expected).abs().max() < 1e-10 * expected.abs().max()


def test_fast_decoding_requires_known_blocks(ours: Ours) -> None:
    class UnknownBlock(block.Block):
        def __init__(self, inner: block.Block) -> None:
            torch.nn.Module.__init__(self)
            self.inner = inner

        def forward(self, x: Tensor, attend: Any, feed: Any, context: ForwardContext) -> Tensor:
            result: Tensor = self.inner(x, attend, feed, context)
            return result

    model = ours()
    cache = model.create_cache()
    assert cache is not None
    assert type(model.build_decode_step(cache)).__name__ == "FastDecoder"
    model.layers[1].block = UnknownBlock(model.layers[1].block)  # type: ignore[union-attr, arg-type]
    slow = model.build_decode_step(cache)
    assert type(slow).__name__ == "partial"
    session = DecodingSession(model, [[3, 4, 5]])
    session.append_tokens([6])
    with torch.no_grad():
        assert torch.allclose(session.logits, model(torch.tensor([[3, 4, 5, 6]])).logits[:, -1], atol=1e-5)


def test_fast_decoding_calls_unknown_norms_as_modules(ours: Ours) -> None:
    class DoublingNorm(norm.Norm):
        def forward(self, x: Tensor, context: ForwardContext) -> Tensor:
            return 2 * x

    model = ours().double()  # without a norm, logits reach 80, where float32 rounds by more than the tolerance
    model.final_norm = DoublingNorm(model.sizes)
    session = DecodingSession(model, [[3, 4, 5]])
    session.append_tokens([6])
    cache = model.create_cache()
    assert cache is not None
    assert type(model.build_decode_step(cache)).__name__ == "FastDecoder"
    with torch.no_grad():
        logit = model(torch.tensor([[3, 4, 5, 6]])).logits[:, -1]
    assert torch.allclose(session.logits, logit, atol=1e-5)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_cached_decoding_equals_uncached_for_pretrained_models(kind: str, theirs: Theirs) -> None:
    model = theirs(kind)
    batch, new_tokens = draw_prompts(3), draw_prompts(3, seed=5, min_length=6, max_length=6)
    session = DecodingSession(model, batch)
    for step in range(6):
        session.append_tokens([token_ids[step] for token_ids in new_tokens])
        for i, prompt in enumerate(batch):
            with torch.no_grad():
                expected = model(torch.tensor([prompt + new_tokens[i][: step + 1]])).logits[0, -1]
            assert (session.logits[i] - expected).abs().max() < 2e-5 * expected.abs().max()


@pytest.mark.parametrize("name", ["greedy", "sample", "top-p", "beam", "contrastive"])
def test_continuations_do_not_depend_on_the_cache(name: str, ours: Ours, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ours(position="rope")
    expected = get_token_ids(h2h.generate(model, draw_prompts(2), name, max_new_tokens=8))
    monkeypatch.setattr(Transformer, "create_cache", lambda self: None)
    assert get_token_ids(h2h.generate(model, draw_prompts(2), name, max_new_tokens=8)) == expected


# ---- alone and in a batch


@pytest.mark.parametrize("name", ["sample", "top-p", "top-k", "typical", "greedy"])
@pytest.mark.parametrize("kind", ["ours", "gpt2", "llama"])
@pytest.mark.usefixtures("unchecked")
def test_samples_of_a_prompt_are_the_same_alone_and_in_a_batch_of_32(
    name: str, kind: str, ours: Ours, theirs: Theirs
) -> None:
    model = ours(position=["alibi", "rope"]) if kind == "ours" else theirs(kind)
    prompts = draw_prompts(32)
    assert len({len(prompt) for prompt in prompts}) > 8  # so that there is padding
    together = h2h.generate(model, prompts, name, max_new_tokens=12, seed=3, stop=7)
    assert [item.prompt for item in together] == list(range(32))
    for index in (0, 5, 17, 31):
        (alone,) = h2h.generate(model, [prompts[index]], name, max_new_tokens=12, seed=3, stop=7)
        assert alone.ids == together[index].ids
        assert alone.finish_reason == together[index].finish_reason


def test_samples_do_not_depend_on_their_number_or_batch_size(ours: Ours) -> None:
    model, prompts = ours(), draw_prompts(4)
    ten_samples = h2h.generate(model, prompts, "top-p", num_samples=10, max_new_tokens=9)
    assert len({item.ids for item in ten_samples if item.prompt == 0}) > 5
    three = h2h.generate(model, prompts, "top-p", num_samples=3, max_new_tokens=9, batch_size=5)
    assert get_token_ids(three) == [item.ids for item in ten_samples if item.sample < 3]
    longer = h2h.generate(model, prompts, "top-p", num_samples=3, max_new_tokens=12)
    assert [item.ids[:9] for item in longer] == get_token_ids(three)


def test_samples_are_a_function_of_the_seed(ours: Ours) -> None:
    model, prompts = ours(), draw_prompts(3)
    first, repeated, different = (
        get_token_ids(h2h.generate(model, prompts, "sample", seed=seed)) for seed in (0, 0, 1)
    )
    assert first == repeated
    assert all(a != b for a, b in zip(first, different, strict=True))


def test_models_with_batch_interaction_decode_each_sequence_alone(ours: Ours) -> None:
    model = ours(merge={"kind": "reweight", "over": "batch"})
    prompts = draw_prompts(5)
    together = h2h.generate(model, prompts, "sample", max_new_tokens=5)
    alone = [h2h.generate(model, [prompt], "sample", max_new_tokens=5)[0] for prompt in prompts]
    assert get_token_ids(together) == get_token_ids(alone)
    with pytest.raises(ModelError, match="the rows of a batch influence each other"):
        h2h.generate(model, prompts, "beam", max_new_tokens=5)


def test_models_that_do_not_mask_padding_decode_without_padding(ours: Ours) -> None:
    model = ours(mask_padding=False)
    prompts = draw_prompts(6)
    together = h2h.generate(model, prompts, "sample", max_new_tokens=5)
    alone = [h2h.generate(model, [prompt], "sample", max_new_tokens=5)[0] for prompt in prompts]
    assert get_token_ids(together) == get_token_ids(alone)


def test_custom_networks_generate_text(tmp_path: Any) -> None:
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
    model_config = config_model.CustomModelConfig.model_validate({"module": "mine.py:Mine", "context": 16})
    model = build_model(model_config, VOCAB, base_folder=tmp_path)
    assert isinstance(model, CustomModel)
    prompts = draw_prompts(4)
    together = h2h.generate(model, prompts, "top-p", max_new_tokens=6)
    alone = [h2h.generate(model, [prompt], "top-p", max_new_tokens=6)[0] for prompt in prompts]
    assert get_token_ids(together) == get_token_ids(alone)
    with pytest.raises(ModelError, match="does not return"):
        h2h.generate(model, prompts, "contrastive", max_new_tokens=6)


def test_sequences_of_different_lengths_are_padded_on_the_left() -> None:
    ids, mask = left_pad([[1, 2, 3], [4]], torch.device("cpu"))
    assert ids.tolist() == [[1, 2, 3], [0, 0, 4]]
    assert mask is not None
    assert mask.tolist() == [[True, True, True], [False, False, True]]
    assert left_pad([[1], [2]], torch.device("cpu"))[1] is None


# ---- the same tokens as transformers


def generate_with_transformers(
    model: PretrainedModel, prompt: list[int], stop: Sequence[int] = (0,), **options: Any
) -> list[list[int]]:
    """Return the new tokens that transformers generates, without stop tokens."""
    input_ids = torch.tensor([prompt])
    common_options = {"do_sample": False, "pad_token_id": stop[0], "eos_token_id": list(stop), "max_new_tokens": 20}
    sequences = model.inner.generate(input_ids, attention_mask=torch.ones_like(input_ids), **common_options, **options)
    continuations = [sequence[len(prompt) :] for sequence in sequences.tolist()]
    return [ids[: next((i for i, token in enumerate(ids) if token in stop), None)] for ids in continuations]


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_greedy_decoding_returns_the_tokens_of_transformers(kind: str, theirs: Theirs) -> None:
    model = theirs(kind)
    for prompt in draw_prompts(6):
        (result,) = h2h.generate(model, [prompt], "greedy", max_new_tokens=20, stop=0)
        assert [list(result.ids)] == generate_with_transformers(model, prompt)


def test_decoding_with_penalties_returns_the_tokens_of_transformers(theirs: Theirs) -> None:
    model = theirs("gpt2")
    options = {"repetition_penalty": 1.4, "no_repeat_ngram": 2, "ban": [[5], [8, 9]], "min_new_tokens": 4}
    transformers_options = {
        "repetition_penalty": 1.4,
        "no_repeat_ngram_size": 2,
        "bad_words_ids": [[5], [8, 9]],
        "min_new_tokens": 4,
    }
    for prompt in draw_prompts(4):
        (result,) = h2h.generate(
            model, [prompt], strategies.build_strategy("greedy", **options), max_new_tokens=20, stop=0
        )
        assert [list(result.ids)] == generate_with_transformers(model, prompt, **transformers_options)


# ---- stop tokens and stop strings


SENTENCES = ("the cat sat on the mat .", "a dog and a cat ran home , did n't they ?", 'he said " no " and left')


def build_word_tokenizer(*, has_bos_and_eos: bool = False) -> CorpusTokenizer:
    return CorpusTokenizer(tokenizers.train_word_tokenizer(SENTENCES, add_bos_eos=has_bos_and_eos))


class RepeatingModel(torch.nn.Module):
    """A model that repeats the same token ids forever."""

    context, can_pad = 1000, True

    def __init__(self, token_ids: list[int], vocab_size: int) -> None:
        super().__init__()
        self.token_ids, self.vocab_size = token_ids, vocab_size

    def create_cache(self) -> None:
        return None

    def build_decode_step(self, cache: Any) -> Any:
        raise AssertionError("there is no cache")

    def next_token_logits(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, *, cache: Any = None
    ) -> Tensor:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask.long()
        logits = torch.zeros(len(input_ids), self.vocab_size)
        for batch_index, position in enumerate((mask.sum(1) - 1).tolist()):
            logits[batch_index, self.token_ids[position % len(self.token_ids)]] = 50.0
        return logits


def build_repeating_model(text: str, tokenizer: Any) -> RepeatingModel:
    return RepeatingModel(tokenizer.encode(text), tokenizer.vocab_size)


def test_continuations_end_before_the_stop_token() -> None:
    tokenizer = build_word_tokenizer(has_bos_and_eos=True)
    assert tokenizer.eos_id is not None
    model = RepeatingModel([*tokenizer.encode("the cat sat"), tokenizer.eos_id], tokenizer.vocab_size)
    (result,) = h2h.generate(model, [[1]], "greedy", tokenizer=tokenizer)
    assert (result.text, result.finish_reason, len(result.ids)) == (" the cat sat", "token", 3)
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
def test_continuations_end_before_a_stop_string(stop: Any, text: str) -> None:
    tokenizer = build_word_tokenizer()
    model = build_repeating_model("the cat sat on the mat .", tokenizer)
    (result,) = h2h.generate(model, [[3]], "greedy", tokenizer=tokenizer, stop=stop, max_new_tokens=8)
    assert result.text == text
    assert result.finish_reason == ("length" if stop == "dog" else "string")
    remaining = tokenizer.decode(result.ids)
    assert remaining.startswith(text.strip()) or text.strip().startswith(remaining)


def test_continuations_end_at_custom_stop_tokens(ours: Ours) -> None:
    model = ours()
    (complete,) = h2h.generate(model, [[5, 6]], "sample", max_new_tokens=20)
    stop = complete.ids[7]
    (result,) = h2h.generate(model, [[5, 6]], "sample", max_new_tokens=20, stop=stop)
    assert result.ids == complete.ids[: complete.ids.index(stop)]
    assert result.finish_reason == "token"


# ---- streaming and traces


@pytest.mark.parametrize("kind", ["words", "bytes"])
@pytest.mark.parametrize("stop", [(), ("cat ran",), ("ömlich",)])
def test_streamed_chunks_concatenate_to_the_text(kind: str, stop: tuple[str, ...]) -> None:
    tokenizer = build_word_tokenizer() if kind == "words" else CorpusTokenizer(tokenizers.build_byte_tokenizer([]))
    output = "a dog and a cat ran home , did n't they ?" if kind == "words" else "nämlich ströhmt — ☃ ömlich!"
    model = build_repeating_model(output, tokenizer)
    (result,) = h2h.generate(model, [[1]], "greedy", tokenizer=tokenizer, stop=stop, max_new_tokens=30)
    chunks = list(generate.stream_generate(model, [[1]], "greedy", tokenizer=tokenizer, stop=stop, max_new_tokens=30))
    assert "".join(chunk.text for chunk in chunks) == result.text
    assert len(chunks) > 5
    assert [chunk.finish_reason for chunk in chunks][:-1] == [None] * (len(chunks) - 1)
    assert chunks[-1].finish_reason == result.finish_reason
    if kind == "bytes":
        assert all("\ufffd" not in chunk.text for chunk in chunks[:-1])


def test_the_space_after_the_prompt_belongs_to_the_continuation() -> None:
    tokenizer = build_word_tokenizer()
    model = build_repeating_model("mat . cat", tokenizer)
    (result,) = h2h.generate(model, ["the"], "greedy", tokenizer=tokenizer, max_new_tokens=3)
    assert result.text == " mat. cat"


def test_a_stream_yields_its_first_chunk_after_one_forward_pass(ours: Ours) -> None:
    model = ours()
    num_calls = 0
    original = model.next_token_logits

    def count_calls(*arguments: Any, **options: Any) -> Tensor:
        nonlocal num_calls
        num_calls += 1
        return original(*arguments, **options)

    model.next_token_logits = count_calls  # type: ignore[method-assign]
    chunks = generate.stream_generate(model, [[5, 6]], "sample", max_new_tokens=20)
    next(chunks)
    assert num_calls == 1
    assert len(list(chunks)) == 19


def test_a_trace_contains_the_distributions_of_the_generated_tokens(ours: Ours) -> None:
    model = ours()
    chosen = strategies.build_strategy("top-p", p=0.6)
    result = h2h.generate(model, [[5, 6]], chosen, num_samples=3, max_new_tokens=8)[2]
    steps = list(trace.trace_generation(model, [5, 6], chosen, sample_index=2, max_new_tokens=8))
    assert tuple(step.token_id for step in steps) == result.ids
    for step in steps:
        assert step.strategy_probs[step.token_id] > step.model_probs[step.token_id] > 0
        assert step.model_probs.sum().item() == pytest.approx(1, abs=1e-5)
        assert step.strategy_probs.sum().item() == pytest.approx(1, abs=1e-5)
        assert step.model_probs[step.strategy_probs > 0].sum() >= 0.6 - 1e-6


# ---- longer than the context


@pytest.mark.parametrize("position", ["learned", "rope"])
def test_sequences_longer_than_the_context_drop_tokens_with_a_warning(position: str, ours: Ours) -> None:
    model = ours(context=16, position=position)
    prompts = draw_prompts(4, min_length=3, max_length=30)
    with pytest.warns(ContextOverflowWarning, match="longer than the model's context of 16 tokens.* 4 at a time"):
        together = h2h.generate(model, prompts, "top-p", max_new_tokens=40)
    assert [len(item.ids) for item in together] == [40] * 4
    for index, prompt in enumerate(prompts):
        with pytest.warns(ContextOverflowWarning):
            (alone,) = h2h.generate(model, [prompt], "top-p", max_new_tokens=40)
        assert alone.ids == together[index].ids


def test_logits_of_a_shifted_window_equal_those_of_its_tokens_alone(ours: Ours) -> None:
    model = ours(context=16)
    session = DecodingSession(model, [list(range(1, 16))])
    for token in range(16, 40):
        session.append_tokens([token])
        window = session.sequences[0][session._window_starts[0] :]
        assert 12 < len(window) <= 16
        with torch.no_grad():
            assert torch.allclose(session.logits, model(torch.tensor([window])).logits[:, -1], atol=1e-5)


def test_sequences_that_fit_give_no_warning(ours: Ours) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        h2h.generate(ours(context=16), [[1, 2, 3]], "sample", max_new_tokens=13)


@pytest.mark.parametrize("name", ["beam", "contrastive"])
def test_searches_exceed_the_context_with_a_warning(name: str, ours: Ours) -> None:
    with pytest.warns(ContextOverflowWarning):
        (result,) = h2h.generate(ours(context=12), [[1, 2, 3]], name, max_new_tokens=20)
    assert len(result.ids) == 20


# ---- invalid requests


def test_empty_prompts_use_the_start_token_or_are_rejected() -> None:
    with_start, without = build_word_tokenizer(has_bos_and_eos=True), build_word_tokenizer()
    assert with_start.bos_id is not None
    (result,) = h2h.generate(
        build_repeating_model("the cat", with_start), "", "greedy", tokenizer=with_start, max_new_tokens=2
    )
    assert result.text == "the cat"
    with pytest.raises(ModelError, match="the prompt is empty and the model has no start token"):
        h2h.generate(build_repeating_model("the cat", without), "", "greedy", tokenizer=without)
    with pytest.raises(ModelError, match="the prompt is empty: give at least one token"):
        h2h.generate(build_repeating_model("the cat", without), [[]], "greedy")


@pytest.mark.usefixtures("unchecked")
def test_invalid_requests_are_rejected_with_a_message(ours: Ours) -> None:
    model = ours()
    classifier = build_model(config_model.TransformerConfig.model_validate({"width": 16, "heads": 2}), VOCAB, 3)
    for message, call in (
        ("num_samples must be an integer of at least 1, got 0", lambda: h2h.generate(model, [[1]], num_samples=0)),
        ("max_new_tokens must be an integer", lambda: h2h.generate(model, [[1]], max_new_tokens=0)),
        ("a text prompt requires a tokenizer", lambda: h2h.generate(model, "hello")),
        ("the stop string 'x' requires a tokenizer", lambda: h2h.generate(model, [[1]], stop="x")),
        ("a classifier cannot generate text", lambda: h2h.generate(classifier, [[1]])),
        ("a Linear cannot generate text", lambda: h2h.generate(torch.nn.Linear(2, 2), [[1]])),
        (
            "chat requires a pretrained model",
            lambda: h2h.generate(model, "x", tokenizer=build_word_tokenizer(), use_chat_template=True),
        ),
    ):
        with pytest.raises(RequestError, match=message):
            call()
    with pytest.raises(StrategyError, match="3 samples require at least as many beams, got 2"):
        h2h.generate(model, [[1]], strategies.build_strategy("beam", beams=2), num_samples=3)


def test_banned_texts_are_not_generated() -> None:
    tokenizer = build_word_tokenizer()
    model = build_repeating_model("the cat sat", tokenizer)
    ban = strategies.build_strategy("greedy", ban=["cat"])
    (result,) = h2h.generate(model, [[1]], ban, tokenizer=tokenizer, max_new_tokens=3)
    assert "cat" not in result.text
    assert result.text.startswith(" the ")


def test_the_training_mode_of_a_model_is_restored(ours: Ours) -> None:
    model = ours(dropout=0.5).train()
    continuations = h2h.generate(model, [[1, 2]], "sample", max_new_tokens=5)
    assert model.training
    assert get_token_ids(h2h.generate(model.eval(), [[1, 2]], "sample", max_new_tokens=5)) == get_token_ids(
        continuations
    )


def test_custom_logits_processors_are_applied_in_order(ours: Ours) -> None:
    def remove_odd_tokens(logits: Tensor, state: logits_processors.GenerationState) -> Tensor:
        return logits.masked_fill(torch.arange(logits.shape[-1]) % 2 == 1, -torch.inf)

    (result,) = h2h.generate(
        ours(), [[1]], [remove_odd_tokens, logits_processors.TopPLogitsProcessor(0.9)], max_new_tokens=30
    )
    assert all(token % 2 == 0 for token in result.ids)


def test_continuations_of_trials_give_no_warnings(ours: Ours) -> None:
    model = ours(context=16)
    continuation_ids = generate.sample_continuation_ids(model, [1, 2, 3], 30, seed=4)
    assert len(continuation_ids) == 30
    assert (
        generate.sample_continuation_ids(model, [1, 2, 3], 30, seed=4, stop_token_id=continuation_ids[9])
        == continuation_ids[: continuation_ids.index(continuation_ids[9])]
    )
    with pytest.raises(ModelError, match="the prompt is empty"):
        generate.sample_continuation_ids(model, [], 30, seed=4)
