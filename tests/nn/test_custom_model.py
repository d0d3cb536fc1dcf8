"""A network of the user's own behind our protocol: whatever shape its answer has, and what is said when it has none."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from headtohead.config import model as config_model
from headtohead.errors import ModelError
from headtohead.model_cost import compute_model_cost
from headtohead.model_factory import build_model
from headtohead.nn.custom_model import CustomModel
from headtohead.nn.kv_cache import KVCache

NETWORKS = """
import torch
from collections import namedtuple
from torch import nn
from torch.nn import functional as F


class Plain(nn.Module):
    '''A tensor.'''
    def __init__(self, vocab_size, width=8):
        super().__init__()
        self.embedding, self.out = nn.Embedding(vocab_size, width), nn.Linear(width, vocab_size)

    def forward(self, idx):
        return self.out(self.embedding(idx))


class Pair(Plain):
    '''A tuple.'''
    def forward(self, idx):
        return super().forward(idx), "whatever"


class NanoGPT(nn.Module):
    '''As nanoGPT does it: without targets, the last position only.'''
    def __init__(self, vocab_size, block_size, n_embd=8):
        super().__init__()
        self.block_size = block_size
        self.wte, self.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, idx, targets=None):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        if targets is None:
            return self.lm_head(x[:, [-1], :]), None
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Hub(Plain):
    '''As transformers does it: an object with .logits, a mask by name.'''
    def forward(self, input_ids=None, attention_mask=None, labels=None):
        assert attention_mask is not None
        logits = super().forward(input_ids) * attention_mask[..., None]
        return namedtuple("Output", "loss logits")(torch.zeros(()), logits)


class Lecture(Plain):
    calls = 0

    def forward(self, idx, targets=None):
        self.calls += 1
        logits = super().forward(idx)
        return (logits, None) if targets is None else (logits.flatten(0, 1), logits.mean())


class HubObject(Plain):
    def forward(self, input_ids):
        class Output:
            logits = Plain.forward(self, input_ids)
        return Output()


class Classifier(nn.Module):
    def __init__(self, n_vocab, num_labels):
        super().__init__()
        self.embedding = nn.EmbeddingBag(n_vocab, num_labels)

    def forward(self, idx):
        return self.embedding(idx)


class Narrow(Plain):
    def forward(self, idx):
        return super().forward(idx)[..., :-1]


class Wordy(Plain):
    def forward(self, idx):
        return "no logits today"


class Demanding(Plain):
    def __init__(self, vocab_size, temperature):
        super().__init__(vocab_size)


class Fussy(Plain):
    def __init__(self, vocab_size, heads=3):
        assert 8 % heads == 0, "heads must divide 8"
        super().__init__(vocab_size)


def not_a_class():
    pass
"""


@pytest.fixture
def own(tmp_path: Path) -> Callable[..., CustomModel]:
    (tmp_path / "nets.py").write_text(inspect.cleandoc(NETWORKS))

    def made(name: str, classes: int | None = None, *, seed: int = 0, **options: Any) -> CustomModel:
        model = config_model.CustomModelConfig(module=f"nets.py:{name}", context=12, options=options)
        built = build_model(model, 11, classes, seed=seed, base_folder=tmp_path)
        assert isinstance(built, CustomModel)
        return built

    return made


IDS = torch.randint(11, (2, 6), generator=torch.Generator().manual_seed(0))


def test_a_network_is_called_once_per_pass(own: Any) -> None:
    network = own("Lecture")
    network(IDS)
    assert network.inner.calls == 1


@pytest.mark.parametrize("name", ["Plain", "Pair", "NanoGPT", "HubObject", "Lecture"])
def test_any_shape_of_answer_becomes_logits(own: Any, name: str) -> None:
    assert own(name)(IDS).logits.shape == (2, 6, 11)


def test_an_output_of_which_the_logits_are_second_is_read_by_name(own: Any) -> None:
    mask = torch.ones_like(IDS)
    mask[1, 3:] = 0
    logits = own("Hub")(IDS, mask).logits
    assert logits.shape == (2, 6, 11)
    assert (logits[1, 3:] == 0).all()  # the mask arrived


def test_a_decoder_that_gives_the_last_position_only_is_asked_with_targets(own: Any) -> None:
    model = own("NanoGPT").double()  # one row a text and six may take different kernels, which differ in the last digit
    last, _ = model.inner(IDS)
    assert last.shape == (2, 1, 11)
    assert torch.allclose(model(IDS).logits[:, -1:], last, rtol=0, atol=1e-12)


def test_the_constructor_is_given_what_it_takes_under_its_own_names(own: Any) -> None:
    model = own("NanoGPT", n_embd=5)
    assert (model.inner.block_size, model.inner.wte.num_embeddings, model.inner.wte.embedding_dim) == (12, 11, 5)


def test_a_classifier_of_the_users_own(own: Any) -> None:
    assert own("Classifier", 3)(IDS).logits.shape == (2, 3)


def test_a_mask_is_passed_only_to_those_who_take_it(own: Any) -> None:
    model = own("Plain")
    assert torch.equal(model(IDS, torch.ones_like(IDS)).logits, model(IDS).logits)


def test_it_starts_from_the_seed_and_nothing_else(own: Any) -> None:
    one, other = own("Plain", seed=1), own("Plain", seed=2)
    torch.rand(5)
    again = own("Plain", seed=1)
    assert torch.equal(one.inner.out.weight, again.inner.out.weight)
    assert not torch.equal(one.inner.out.weight, other.inner.out.weight)


def test_its_sizes_are_counted(own: Any, tmp_path: Path) -> None:
    own("Plain")
    counted = compute_model_cost(
        config_model.CustomModelConfig(module="nets.py:Plain", context=12), 11, base_folder=tmp_path
    )
    assert counted.parameters == 11 * 8 + 8 * 11 + 11
    assert counted.flops_per_token == 2 * 8 * 11


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Plian", r"nets\.py defines no nn\.Module 'Plian'; did you mean 'Plain'\? \(available: Plain, Pair, "),
        ("not_a_class", r"defines no nn\.Module 'not_a_class'"),
        ("Demanding", r"missing 1 required positional argument: 'temperature' .*put other arguments in model\.options"),
        ("Fussy", r"nets\.py:Fussy: AssertionError in the constructor: heads must divide 8"),
    ],
)
def test_a_class_that_cannot_be_made_is_an_error(own: Any, name: str, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        own(name)


def test_an_option_that_the_constructor_does_not_take_is_an_error(own: Any) -> None:
    with pytest.raises(ModelError, match=r"unexpected keyword argument 'depth' \(model.options = \{'depth': 3\}"):
        own("Plain", depth=3)


def test_logits_of_another_shape_are_an_error(own: Any) -> None:
    with pytest.raises(ModelError, match=r"nets\.py:Narrow: logits have shape \(2, 6, 10\), expected \(2, 6, 11\)"):
        own("Narrow")(IDS)
    with pytest.raises(ModelError, match=r"logits have shape \(2, 6, 11\), expected \(2, 3\)"):
        own("Plain", 3)(IDS)


def test_an_answer_without_logits_is_an_error(own: Any) -> None:
    with pytest.raises(ModelError, match=r"must return logits as a tensor, a tuple or \.logits, got str"):
        own("Wordy")(IDS)


def test_maps_and_cache_are_refused(own: Any) -> None:
    with pytest.raises(ModelError, match=r"nets\.py:Plain: custom models do not return attention weights"):
        own("Plain")(IDS, output_attentions=True)
    with pytest.raises(ModelError, match=r"nets\.py:Plain: custom models have no cache"):
        own("Plain")(IDS, cache=KVCache(1))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, r"mine\.py:Net: file mine\.py not found in "),
        ("1 / 0", r"mine\.py:Net: ZeroDivisionError: division by zero"),
        ("class Net(:", r"mine\.py:Net: SyntaxError: invalid syntax"),
        ("x = 1", r"mine\.py defines no nn\.Module 'Net' \(available: none\)"),
    ],
    ids=["missing", "raises", "syntax", "empty"],
)
def test_a_file_that_cannot_be_used_is_an_error(tmp_path: Path, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    with pytest.raises(ModelError, match=words):
        build_model(config_model.CustomModelConfig(module="mine.py:Net"), 11, base_folder=tmp_path)
