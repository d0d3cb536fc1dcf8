"""Attention maps as small pictures: one PNG a head, a pixel for each pair of tokens, and what it shows in words.

A picture has one colour, and the weight is how opaque a pixel is, so that it can lie on light and on dark paper. Small
weights are drawn stronger than they are (the square root), or a row that is spread over many tokens would look blank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from headtohead.errors import RunFolderError
from headtohead.experiment import schemas
from headtohead.experiment.run_folder import ExperimentRuns, read_arrays
from headtohead.presentation.png import build_data_uri
from headtohead.presentation.png import encode_png as write_png

WeightArray = np.ndarray[Any, np.dtype[Any]]

MAP_COLOR = (8, 48, 107)
MAX_TOKENS = 64
MAX_LAYERS = 12
MAX_HEADS = 12


@dataclass(frozen=True)
class TrainingMaps:
    """Attention on one text before and after training: for each layer heads x query x key."""

    text: str
    tokens: tuple[str, ...]
    before: Mapping[int, WeightArray]
    after: Mapping[int, WeightArray]
    seed: int = 0


@dataclass(frozen=True)
class HeadImage:
    """One head's picture."""

    layer: int
    head: int
    when: str
    data_uri: str
    words: str


@dataclass(frozen=True)
class LayerImages:
    """The pictures of a layer: all heads before, all heads after."""

    layer: int
    before: tuple[HeadImage, ...]
    after: tuple[HeadImage, ...]


def read_training_maps(folder: Path, variants: Sequence[str]) -> dict[str, TrainingMaps]:
    """The maps of each variant's first seed that has some."""
    found = {}
    for variant in variants:
        runs = ExperimentRuns(folder)
        for seed in runs.seeds(variant):
            run = runs.run(variant, seed).folder
            if (run / "maps.safetensors").is_file() and (run / "maps.json").is_file():
                found[variant] = _read_run_maps(run, seed)
                break
    return found


def _read_run_maps(run_folder: Path, seed: int) -> TrainingMaps:
    about = schemas.read_validated(run_folder / "maps.json", schemas.AttentionMapsFile)
    try:
        arrays = read_arrays(run_folder / "maps.safetensors")
    except SafetensorError as error:
        raise RunFolderError(f"{run_folder / 'maps.safetensors'}: is damaged ({error})") from None
    layers: dict[str, dict[int, WeightArray]] = {"before": {}, "after": {}}
    for name, array in arrays.items():
        when, _, layer = name.partition(".")
        if when in layers:
            if not layer.isdecimal() or len(layer) > 4 or array.ndim != 3 or 0 in array.shape:
                raise RunFolderError(f"{run_folder / 'maps.safetensors'}: is damaged (no attention map in {name!r})")
            layers[when][int(layer)] = array
    return TrainingMaps(str(about["text"]), tuple(map(str, about["tokens"])), layers["before"], layers["after"], seed)


def render_layers(maps: TrainingMaps) -> list[LayerImages]:
    """Every head as a picture, layer by layer; of very large models the first ones."""
    made = []
    for layer in sorted({*maps.before, *maps.after})[:MAX_LAYERS]:
        before, after = (_render_heads(when.get(layer), layer, name) for when, name in _pair_weights_with_stage(maps))
        made.append(LayerImages(layer, before, after))
    return made


def _pair_weights_with_stage(maps: TrainingMaps) -> tuple[tuple[Mapping[int, WeightArray], str], ...]:
    return (maps.before, "before"), (maps.after, "after")


def _render_heads(weights: WeightArray | None, layer: int, stage: str) -> tuple[HeadImage, ...]:
    if weights is None:
        return ()
    return tuple(
        HeadImage(
            layer, head, stage, render_head_uri(one[:MAX_TOKENS, :MAX_TOKENS]), describe_head(one, layer, head, stage)
        )
        for head, one in enumerate(weights[:MAX_HEADS])
    )


def describe_head(weights: WeightArray, layer: int, head: int, stage: str) -> str:
    """Where a head looks on average: at the token itself, the one before it, the first."""
    share = {
        "the token itself": np.diagonal(weights).mean(),
        "the token before": np.diagonal(weights, -1).mean() if len(weights) > 1 else 0.0,
        "the first token": weights[1:, 0].mean() if len(weights) > 1 else 0.0,
    }
    said = ", ".join(f"{100 * part:.0f} % on {name}" for name, part in share.items())
    return f"Layer {layer + 1}, head {head + 1}, {stage} training. Weight on average: {said}."


def render_head_uri(weights: WeightArray) -> str:
    return build_data_uri(render_head(weights))


def render_head(weights: WeightArray) -> bytes:
    """One colour in 256 strengths."""
    shares = np.sqrt(np.clip(np.nan_to_num(weights.astype(np.float64)), 0, 1))
    pixels = np.rint(255 * shares).astype(np.uint8)
    return write_png(pixels, bytes(MAP_COLOR) * 256, bytes(range(256)))
