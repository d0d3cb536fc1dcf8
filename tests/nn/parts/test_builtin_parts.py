"""Built-in parts and their combinations pass the conformance suite with every set of options listed here."""

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from headtohead.audit.conformance.fixtures import build_fixture
from headtohead.audit.model_audit import COMPARISON_CHECKS
from headtohead.audit.model_checks.kv_cache import compute_logits_in_chunks
from headtohead.audit.model_checks.padding import build_mixed_padding_mask
from headtohead.audit.tolerance import Difference
from headtohead.config.validation.component_options import get_component_options
from headtohead.nn.parts import registry
from headtohead.nn.parts.base import Part
from headtohead.testing import check_part

Options = dict[str, Any]

OPTIONS: dict[tuple[str, str], tuple[Options, ...]] = {
    ("position", "none"): ({},),
    ("position", "learned"): ({}, {"std": 0.02}),
    ("position", "sinusoidal"): ({}, {"base": 100.0}),
    ("position", "alibi"): ({}, {"slope": 1.0}, {"slopes": [0.5, 0.25, 0.25, 2.0]}),
    ("position", "relative"): ({}, {"buckets": 8, "max_distance": 12}),
    ("position", "rope"): ({}, {"base": 500.0, "fraction": 0.5}, {"frequencies": [0.9, 0.5, 0.1, 0.0]}),
    ("pattern", "full"): ({},),
    ("pattern", "causal"): ({},),
    ("pattern", "window"): ({"size": 1}, {"size": 4}, {"size": 19}),
    ("projection", "linear"): ({}, {"bias": True, "key_heads": 2}, {"key_heads": 1}),
    ("projection", "qk-norm"): (
        {},
        {"norm": "layer", "bias": True, "eps": 1e-5},
        {"norm": "layer", "scale": "per-head"},
        {"over": "all-heads"},
    ),
    ("projection", "query-scale"): ({"by": 2.5},),
    ("projection", "mlp"): ({}, {"depth": 3, "hidden": 10, "bias": False}),
    ("merge", "concat"): ({},),
    ("merge", "shift"): ({}, {"by": 2}),
    ("merge", "shuffle"): ({}, {"draw": "every-pass"}),
    ("merge", "reweight"): (
        {},
        {"normalise": True},
        {"over": "batch"},
        {"over": "batch", "normalise": True},
        {"at_inference": False},
    ),
    ("merge", "causal-reweight"): ({}, {"normalise": False}),
    ("attention", "composed"): ({}, {"output_bias": False}),
    ("attention", "softcap"): ({}, {"cap": 0.5, "output_bias": False}),
    ("attention", "sinks"): ({}, {"output_bias": False}),
    ("attention", "differential"): ({}, {"output_bias": False, "eps": 1e-3}),
    ("feedforward", "none"): ({},),
    ("feedforward", "gated-experts"): (
        {},
        {"experts": 3, "active": 3, "hidden": 10, "alpha": 1.0, "limit": 0.3},
    ),
    ("feedforward", "mlp"): (
        {},
        {"activation": "gelu", "bias": False},
        {"activation": "gelu-tanh"},
        {"activation": "silu"},
        {"activation": "relu-squared"},
    ),
    ("feedforward", "swiglu"): ({}, {"hidden": 20, "bias": True}, {"activation": "gelu-tanh"}),
    ("norm", "none"): ({},),
    ("norm", "layer"): ({}, {"eps": 1e-12, "bias": False}),
    ("norm", "rms"): ({}, {"eps": 1e-5}),
    ("block", "pre"): ({}, {"attention_norm": False}),
    ("block", "post"): ({},),
    ("block", "parallel"): ({}, {"separate_norms": True}),
    ("block", "reordered"): ({},),
    ("block", "sandwich"): ({},),
    ("embedding", "table"): ({}, {"std": 0.1}),
    ("embedding", "scale"): ({}, {"by": 3.0}),
    ("stack", "sequential"): ({},),
    ("output", "linear"): ({}, {"bias": False, "init": "zero"}, {"bias": "frequencies"}),
    ("output", "mlm-head"): (
        {},
        {"activation": "relu", "hidden_bias": False, "norm_bias": False, "eps": 1e-5, "bias": False},
    ),
    ("output", "scale"): ({"by": 0.25},),
    ("output", "softcap"): ({}, {"cap": 1.5}),
    ("init", "torch"): ({},),
    ("init", "gpt2"): ({}, {"std": 0.1}),
    ("init", "residual-scaling"): ({},),
    ("init", "zero-residual"): ({},),
    ("init", "mup"): ({}, {"base_width": 16}),
    ("pool", "mean"): ({},),
    ("pool", "first"): ({},),
    ("pool", "max"): ({},),
    ("pool", "attention"): ({},),
}


# An imported encoder without a head cannot be trained; tests/exchange compares its hidden states.
NO_LOGITS = {("output", "hidden-states")}


def is_built_in(part_class: type[Part]) -> bool:
    return part_class.__module__.startswith("headtohead.nn.parts.")


def test_every_built_in_part_is_checked() -> None:
    """Fails if a part is added without an entry above."""
    classes = [part_class for part_class in registry.list_part_classes() if is_built_in(part_class)]
    assert {(part_class.slot, part_class.kind) for part_class in classes} - NO_LOGITS == set(OPTIONS)


def test_every_option_of_a_built_in_part_is_tried() -> None:
    """Each option of each part occurs in at least one set."""
    untried = {
        f"{slot} {kind}: {option}"
        for (slot, kind), sets in OPTIONS.items()
        for option in get_component_options(registry.get_part_class(slot, kind))
        if not any(option in options for options in sets)
    }
    assert untried == {"feedforward mlp: hidden"}  # every fixture model sets it


@pytest.mark.parametrize(
    ("slot", "kind", "options"),
    [(slot, kind, options) for (slot, kind), sets in OPTIONS.items() for options in sets],
    ids=lambda given: ",".join(f"{k}={v}" for k, v in given.items()) or "plain" if isinstance(given, dict) else given,
)
@pytest.mark.usefixtures("unchecked")
def test_built_in_part_passes_the_conformance_suite(slot: str, kind: str, options: Options) -> None:
    findings = check_part(slot, kind, options)
    assert len(findings) >= 10
    failed = [str(finding) for finding in findings if not finding.passed]
    assert not failed, "\n".join(failed)


# Combinations: the values of each slot of a decoder and of an encoder. The quick test covers every pair of values of
# two slots, the slow one all combinations of the slots that interact in attention.

WINDOW = {"kind": "window", "size": 5}
MERGES = (
    "concat",
    "shift",
    "shuffle",
    {"kind": "reweight", "at_inference": False},
    "causal-reweight",
    {"kind": "causal-reweight", "normalise": False},
)
SHARED: dict[str, Sequence[Any]] = {
    "position": ("none", "learned", "sinusoidal", "alibi", "rope", ["alibi", "rope"], ["learned", "alibi", "rope"]),
    "projection": (
        "linear",
        {"kind": "linear", "key_heads": 2, "bias": True},
        {"kind": "linear", "key_heads": 1},
        "mlp",
    ),
    "merge": MERGES,
    "feedforward": (
        {"kind": "mlp", "hidden": 24},
        {"kind": "mlp", "hidden": 24, "activation": "gelu"},
        "swiglu",
        "none",
    ),
    "norm": ("layer", "rms"),
    "block": ("pre", "post", "parallel"),
}
DECODER: dict[str, Sequence[Any]] = {
    "pattern": (
        "causal",
        {"kind": "window", "size": 1},
        WINDOW,
        {"kind": "window", "size": 21},
        ["causal", WINDOW],
        {"layers": ["causal", WINDOW]},
    ),
    **SHARED,
    "tie_word_embeddings": (False, True),
}
ENCODER: dict[str, Sequence[Any]] = {
    "pattern": ("full", WINDOW, ["full", WINDOW], "causal", ["causal", WINDOW], {"layers": [WINDOW, "full"]}),
    **SHARED,
    "pool": ("mean", "first", "max", "attention"),
}


def select_pairwise_combinations(slots: dict[str, Sequence[Any]], generator: random.Random) -> list[dict[str, Any]]:
    """Return combinations that cover every pair of values of two slots, selected greedily from random candidates."""
    missing = {
        ((a, i), (b, j))
        for a, b in itertools.combinations(slots, 2)
        for i in range(len(slots[a]))
        for j in range(len(slots[b]))
    }
    chosen = []
    while missing:
        required_pair = generator.choice(sorted(missing))
        candidates = [
            {slot: generator.randrange(len(values)) for slot, values in slots.items()} | dict(required_pair)
            for _ in range(100)
        ]
        best = max(
            candidates,
            key=lambda candidate: sum(pair in missing for pair in itertools.combinations(candidate.items(), 2)),
        )
        missing -= set(itertools.combinations(best.items(), 2))
        chosen.append({slot: slots[slot][index] for slot, index in best.items()})
    return chosen


def draw_combinations(slots: dict[str, Sequence[Any]], count: int, generator: random.Random) -> list[dict[str, Any]]:
    return [{slot: generator.choice(values) for slot, values in slots.items()} for _ in range(count)]


def check_combination(settings: dict[str, Any], *, encoder: bool) -> None:
    fixture = build_fixture(settings, is_encoder=encoder, include_short_length=False)
    assert not fixture.build_model().violates
    for name in ("attention-implementations",) if encoder else ("attention-implementations", "kv-cache"):
        audited_models = fixture.audited_models + (
            fixture.float32_audited_models if name == "attention-implementations" else []
        )
        for difference in (
            d for audited_model in audited_models for d in COMPARISON_CHECKS[name].measure_differences(audited_model)
        ):
            assert isinstance(difference, Difference)
            assert difference.is_within_tolerance, f"{settings}\n{name}\n{difference}"


def test_pairs_are_all_covered() -> None:
    """The selected combinations cover every pair of values of two slots."""
    chosen = select_pairwise_combinations(DECODER, random.Random(1))
    for (a, ones), (b, others) in itertools.combinations(DECODER.items(), 2):
        assert all(any(c[a] == item and c[b] == other for c in chosen) for item in ones for other in others)
    assert len(chosen) < 100


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("encoder", [False, True], ids=["decoder", "encoder"])
def test_pairs_of_parts_agree_across_attention_implementations_and_with_a_cache(encoder: bool) -> None:
    generator = random.Random(1)
    slots = ENCODER if encoder else DECODER
    for settings in select_pairwise_combinations(slots, generator) + draw_combinations(slots, 5, generator):
        check_combination(settings, encoder=encoder)


@pytest.mark.parametrize("encoder", [False, True], ids=["decoder", "encoder"])
def test_shapes_match_the_annotations(encoder: bool) -> None:
    """Shapes match the jaxtyping annotations for each value of each slot and every attention implementation."""
    slots = ENCODER if encoder else DECODER
    for index in range(max(map(len, slots.values()))):
        settings = {slot: values[index % len(values)] for slot, values in slots.items()}
        fixture = build_fixture(settings, is_encoder=encoder)
        audited_model = fixture.build_audited_model(fixture.input_lengths[-1], dtype=torch.float32)
        ids, mask = audited_model.input_ids, build_mixed_padding_mask(audited_model.input_ids)
        audited_model.compute_logits(ids)
        audited_model.compute_logits(ids, mask)
        audited_model.compute_logits(ids[:, :5], mask[:, :5], output_attentions=True)
        if not encoder:
            compute_logits_in_chunks(audited_model.compute_logits, 2, ids[:, :5], [3, 1, 1], mask[:, :5])


IN_ATTENTION = ("position", "pattern", "projection", "merge")


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("encoder", [False, True], ids=["decoder", "encoder"])
@pytest.mark.parametrize("position", SHARED["position"], ids=str)
def test_all_combinations_in_attention_agree_across_attention_implementations_and_with_a_cache(
    position: Any, encoder: bool
) -> None:
    """Test every combination of parts that interact in attention. All other slots act on each position separately and
    are cycled through in random order.
    """
    slots = {**(ENCODER if encoder else DECODER), "position": (position,)}
    attention_values = itertools.product(*(slots[slot] for slot in IN_ATTENTION))
    other_slots = [slot for slot in slots if slot not in IN_ATTENTION]
    other_values = list(itertools.product(*(slots[slot] for slot in other_slots)))
    random.Random(3).shuffle(other_values)
    for combination in zip(attention_values, itertools.cycle(other_values), strict=False):
        values = itertools.chain(*combination)
        check_combination(dict(zip((*IN_ATTENTION, *other_slots), values, strict=True)), encoder=encoder)
