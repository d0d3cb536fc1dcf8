"""Built-in parts and their combinations pass the conformance suite with every set of options listed here."""

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from headtohead.audit.conformance.fixtures import build_fixture
from headtohead.audit.model_audit import COMPARISON_CHECKS
from headtohead.audit.model_checks.base import build_mixed_padding_mask
from headtohead.audit.model_checks.kv_cache import compute_logits_in_chunks
from headtohead.audit.tolerance import Difference
from headtohead.config.validation.component_options import get_options
from headtohead.nn.parts import registry
from headtohead.nn.parts.base import Part
from headtohead.testing import check_part

Options = dict[str, Any]

OPTIONS: dict[tuple[str, str], tuple[Options, ...]] = {
    ("position", "none"): ({},),
    ("position", "learned"): ({}, {"start": 0.02}),
    ("position", "sinusoidal"): ({}, {"base": 100.0}),
    ("position", "alibi"): ({}, {"slope": 1.0}),
    ("position", "rope"): ({}, {"base": 500.0, "fraction": 0.5}),
    ("pattern", "full"): ({},),
    ("pattern", "causal"): ({},),
    ("pattern", "window"): ({"size": 1}, {"size": 4}, {"size": 19}),
    ("projection", "linear"): ({}, {"bias": True, "key_heads": 2}, {"key_heads": 1}),
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
    ("feedforward", "none"): ({},),
    ("feedforward", "mlp"): (
        {},
        {"activation": "gelu", "bias": False},
        {"activation": "gelu-tanh"},
        {"activation": "silu"},
    ),
    ("feedforward", "swiglu"): ({}, {"hidden": 20, "bias": True}),
    ("norm", "layer"): ({}, {"eps": 1e-12, "bias": False}),
    ("norm", "rms"): ({}, {"eps": 1e-5}),
    ("block", "pre"): ({},),
    ("block", "post"): ({},),
    ("block", "parallel"): ({},),
    ("pool", "mean"): ({},),
    ("pool", "first"): ({},),
    ("pool", "max"): ({},),
    ("pool", "attention"): ({},),
}


def is_built_in(made: type[Part]) -> bool:
    return made.__module__.startswith("headtohead.nn.parts.")


def test_every_built_in_part_is_checked() -> None:
    """A part that is added without an entry above fails here."""
    assert {(made.slot, made.kind) for made in registry.list_part_classes() if is_built_in(made)} == set(OPTIONS)


def test_every_option_of_a_built_in_part_is_tried() -> None:
    """Each option of each part stands in at least one set."""
    untried = {
        f"{slot} {kind}: {option}"
        for (slot, kind), sets in OPTIONS.items()
        for option in get_options(registry.get_part_class(slot, kind))
        if not any(option in options for options in sets)
    }
    assert untried == {"feedforward mlp: hidden"}  # every small model of the bench has it


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


# Combinations. What a decoder and an encoder may be made of, slot by slot; every value of one slot meets every value of
# each other slot in the quick test, and everything that meets in attention in the slow one.

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


def pairwise(slots: dict[str, Sequence[Any]], draw: random.Random) -> list[dict[str, Any]]:
    """Combinations in which every two values of two slots meet at least once: greedy, the best of some random ones."""
    missing = {
        ((a, i), (b, j))
        for a, b in itertools.combinations(slots, 2)
        for i in range(len(slots[a]))
        for j in range(len(slots[b]))
    }
    chosen = []
    while missing:
        must = draw.choice(sorted(missing))
        tried = [{slot: draw.randrange(len(values)) for slot, values in slots.items()} | dict(must) for _ in range(100)]
        best = max(tried, key=lambda one: sum(pair in missing for pair in itertools.combinations(one.items(), 2)))
        missing -= set(itertools.combinations(best.items(), 2))
        chosen.append({slot: slots[slot][index] for slot, index in best.items()})
    return chosen


def sample(slots: dict[str, Sequence[Any]], count: int, draw: random.Random) -> list[dict[str, Any]]:
    return [{slot: draw.choice(values) for slot, values in slots.items()} for _ in range(count)]


def judge(settings: dict[str, Any], *, encoder: bool) -> None:
    fixture = build_fixture(settings, is_encoder=encoder, include_short_length=False)
    assert not fixture.build_model().violates
    for name in ("attention-implementations",) if encoder else ("attention-implementations", "kv-cache"):
        probes = fixture.probes + (fixture.float32_probes if name == "attention-implementations" else [])
        for difference in (d for probe in probes for d in COMPARISON_CHECKS[name].measure(probe)):
            assert isinstance(difference, Difference)
            assert difference.is_within_tolerance, f"{settings}\n{name}\n{difference}"


def test_pairs_are_all_covered() -> None:
    """The selection is what it says: every two values of two slots meet."""
    chosen = pairwise(DECODER, random.Random(1))
    for (a, ones), (b, others) in itertools.combinations(DECODER.items(), 2):
        assert all(any(c[a] == one and c[b] == other for c in chosen) for one in ones for other in others)
    assert len(chosen) < 100


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("encoder", [False, True], ids=["decoder", "encoder"])
def test_pairs_of_parts_agree_across_attention_implementations_and_with_a_cache(encoder: bool) -> None:
    draw = random.Random(1)
    slots = ENCODER if encoder else DECODER
    for settings in pairwise(slots, draw) + sample(slots, 5, draw):
        judge(settings, encoder=encoder)


@pytest.mark.parametrize("encoder", [False, True], ids=["decoder", "encoder"])
def test_parts_keep_to_their_annotations(encoder: bool) -> None:
    """Shapes match the annotations for each value of each slot and every attention implementation (jaxtyping)."""
    slots = ENCODER if encoder else DECODER
    for turn in range(max(map(len, slots.values()))):
        settings = {slot: values[turn % len(values)] for slot, values in slots.items()}
        fixture = build_fixture(settings, is_encoder=encoder)
        probe = fixture.build_probe(fixture.lengths[-1], dtype=torch.float32)
        ids, mask = probe.input_ids, build_mixed_padding_mask(probe.input_ids)
        probe.compute_logits(ids)
        probe.compute_logits(ids, mask)
        probe.compute_logits(ids[:, :5], mask[:, :5], output_attentions=True)
        if not encoder:
            compute_logits_in_chunks(probe.compute_logits, 2, ids[:, :5], [3, 1, 1], mask[:, :5])


IN_ATTENTION = ("position", "pattern", "projection", "merge")


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("encoder", [False, True], ids=["decoder", "encoder"])
@pytest.mark.parametrize("position", SHARED["position"], ids=str)
def test_all_combinations_in_attention_agree_across_attention_implementations_and_with_a_cache(
    position: Any, encoder: bool
) -> None:
    """Every combination of what meets in attention. The other slots treat each position by itself, whatever the road,
    and take turns in a random order."""
    slots = {**(ENCODER if encoder else DECODER), "position": (position,)}
    attention = itertools.product(*(slots[slot] for slot in IN_ATTENTION))
    rest = [slot for slot in slots if slot not in IN_ATTENTION]
    turns = list(itertools.product(*(slots[slot] for slot in rest)))
    random.Random(3).shuffle(turns)
    for chosen, turn in zip(attention, itertools.cycle(turns), strict=False):
        judge(dict(zip((*IN_ATTENTION, *rest), (*chosen, *turn), strict=True)), encoder=encoder)
