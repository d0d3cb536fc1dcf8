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
from headtohead.experiment.run_folder import Runs, read_arrays
from headtohead.presentation.png import png as write_png
from headtohead.presentation.png import uri

Weights = np.ndarray[Any, np.dtype[Any]]

COLOUR = (8, 48, 107)
MOST_TOKENS = 64
MOST_LAYERS = 12
MOST_HEADS = 12


@dataclass(frozen=True)
class Maps:
    """Attention on one text before and after training: for each layer heads x query x key."""

    text: str
    tokens: tuple[str, ...]
    before: Mapping[int, Weights]
    after: Mapping[int, Weights]
    seed: int = 0


@dataclass(frozen=True)
class Head:
    """One head's picture."""

    layer: int
    head: int
    when: str
    uri: str
    words: str


@dataclass(frozen=True)
class Layer:
    """The pictures of a layer: all heads before, all heads after."""

    layer: int
    before: tuple[Head, ...]
    after: tuple[Head, ...]


def read_maps(folder: Path, variants: Sequence[str]) -> dict[str, Maps]:
    """The maps of each variant's first seed that has some."""
    found = {}
    for variant in variants:
        runs = Runs(folder)
        for seed in runs.seeds(variant):
            run = runs.run(variant, seed).folder
            if (run / "maps.safetensors").is_file() and (run / "maps.json").is_file():
                found[variant] = _read(run, seed)
                break
    return found


def _read(run: Path, seed: int) -> Maps:
    about = schemas.read(run / "maps.json", schemas.MapsAbout)
    try:
        arrays = read_arrays(run / "maps.safetensors")
    except SafetensorError as error:
        raise RunFolderError(f"{run / 'maps.safetensors'}: is damaged ({error})") from None
    layers: dict[str, dict[int, Weights]] = {"before": {}, "after": {}}
    for name, array in arrays.items():
        when, _, layer = name.partition(".")
        if when in layers:
            if not layer.isdecimal() or len(layer) > 4 or array.ndim != 3 or 0 in array.shape:
                raise RunFolderError(f"{run / 'maps.safetensors'}: is damaged (no attention map in {name!r})")
            layers[when][int(layer)] = array
    return Maps(str(about["text"]), tuple(map(str, about["tokens"])), layers["before"], layers["after"], seed)


def pictures(maps: Maps) -> list[Layer]:
    """Every head as a picture, layer by layer; of very large models the first ones."""
    made = []
    for layer in sorted({*maps.before, *maps.after})[:MOST_LAYERS]:
        before, after = (_heads(when.get(layer), layer, name) for when, name in _both(maps))
        made.append(Layer(layer, before, after))
    return made


def _both(maps: Maps) -> tuple[tuple[Mapping[int, Weights], str], ...]:
    return (maps.before, "before"), (maps.after, "after")


def _heads(weights: Weights | None, layer: int, when: str) -> tuple[Head, ...]:
    if weights is None:
        return ()
    return tuple(
        Head(layer, head, when, png_uri(one[:MOST_TOKENS, :MOST_TOKENS]), words(one, layer, head, when))
        for head, one in enumerate(weights[:MOST_HEADS])
    )


def words(weights: Weights, layer: int, head: int, when: str) -> str:
    """Where a head looks on average: at the token itself, the one before it, the first."""
    share = {
        "the token itself": np.diagonal(weights).mean(),
        "the token before": np.diagonal(weights, -1).mean() if len(weights) > 1 else 0.0,
        "the first token": weights[1:, 0].mean() if len(weights) > 1 else 0.0,
    }
    said = ", ".join(f"{100 * part:.0f} % on {name}" for name, part in share.items())
    return f"Layer {layer + 1}, head {head + 1}, {when} training. Weight on average: {said}."


def png_uri(weights: Weights) -> str:
    return uri(png(weights))


def png(weights: Weights) -> bytes:
    """One colour in 256 strengths."""
    shares = np.sqrt(np.clip(np.nan_to_num(weights.astype(np.float64)), 0, 1))
    pixels = np.rint(255 * shares).astype(np.uint8)
    return write_png(pixels, bytes(COLOUR) * 256, bytes(range(256)))
