"""The door to attention from Python: the maps of a model on a text, with measures and checks, to save or to display."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from headtohead.attention_analysis import head_metrics, map_checks, page, svg
from headtohead.attention_analysis.maps import Maps, chosen, collect, difference, read
from headtohead.attention_analysis.pictures import Panel, Sheet
from headtohead.config import model
from headtohead.errors import ModelError
from headtohead.experiment import model_io
from headtohead.experiment.model_io import Saved
from headtohead.experiment.open_model import Opened, open_model
from headtohead.pretrained.tokenizer import PretrainedTokenizer

MOST_PADDED = 4096
COPYING = 64
"""tokens of the rows on which copying is tried"""

Weights = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class Attention:
    """Attention on one text: of a model, before and after its training, or of two models with their difference.

    Displays itself in a notebook. Layers and heads are counted from 1 in words and rows, from 0 in arrays.
    """

    title: str
    panels: tuple[Maps, ...]
    measured: dict[str, list[head_metrics.Row]]
    """by the name of the panel"""

    @property
    def shown(self) -> Maps:
        """The maps that are asked about: those of the model, after training."""
        return next(one for one in self.panels if one.name in self._asked)

    @property
    def _asked(self) -> tuple[str, ...]:
        return (AFTER,) if self.panels[0].name == BEFORE else (self.panels[0].name,)

    @property
    def text(self) -> str:
        return self.shown.text

    @property
    def tokens(self) -> tuple[str, ...]:
        return self.shown.tokens

    @property
    def maps(self) -> tuple[Weights, ...]:
        """Heads x query x key for each layer."""
        return self.shown.layers

    @property
    def notes(self) -> tuple[str, ...]:
        return self.shown.notes

    @property
    def measures(self) -> list[head_metrics.Row]:
        """A row for each head."""
        return self.measured[self.shown.name]

    @cached_property
    def checked(self) -> dict[str, list[map_checks.Check]]:
        return {one.name: map_checks.check(one) for one in self.panels if not one.signed}

    @property
    def checks(self) -> list[map_checks.Check]:
        return self.checked[self.shown.name]

    def save(self, path: str | Path) -> Path:
        """Write a page (.html) or a picture (.svg, .pdf, .png)."""
        return svg.save(self.sheet, path)

    @cached_property
    def sheet(self) -> Sheet:
        """All of it, for those who draw."""
        return Sheet(
            self.title,
            self.text,
            self.tokens,
            self.shown.real,
            tuple(Panel(one.name, one.layers, one.layer_numbers, one.head_numbers, one.signed) for one in self.panels),
            self.notes,
            {name: [check.as_row() for check in found] for name, found in self.checked.items()},
            self.measured,
        )

    def as_row(self) -> dict[str, Any]:
        """Plain data, for --json."""
        return {
            "title": self.title,
            "text": self.text,
            "tokens": list(self.tokens),
            "padding": int((~self.shown.real).sum()),
            "notes": list(self.notes),
            "panels": [
                {
                    "name": name,
                    "measures": [{**row, "copies": head_metrics.copies(row)} for row in self.measured[name]],
                    "checks": [check.as_row() for check in self.checked[name]],
                }
                for name in self.measured
            ],
        }

    def _repr_html_(self) -> str:
        return page.fragment(self.sheet)

    def __repr__(self) -> str:
        return f"<attention of {self.title}: {len(self.tokens)} tokens, {self.shown.shape}>"


BEFORE, AFTER = "before training", "after training"


def attention(
    model: str | Path | Opened,
    text: str,
    *,
    before: bool = False,
    against: str | Path | Opened | None = None,
    layer: int | None = None,
    head: int | None = None,
    pad: bool | None = None,
    silence: bool = False,
) -> Attention:
    """The attention of a model (a run folder, or a pretrained model) on a text.

    `before` also shows a run's model as it was before training, `against` another model and the difference. `layer` and
    `head` (from 1) choose. `pad` shows the text padded to the context; by default a classifier, which reads padded
    rows, is shown with a strip of padding. `silence` measures what each head is worth on this text.
    """
    if before and against is not None:
        raise ModelError("before and against: one of the two can be shown, not both")
    opened = _open(model)
    shown: list[tuple[str, Opened]] = [(_name(opened), opened)]
    if before:
        shown = [(BEFORE, _beginning(opened)), (AFTER, opened)]
    elif against is not None:
        other = _open(against)
        names = [_name(opened), _name(other)]
        if names[0] == names[1]:
            names = [one.name for one in (opened, other)]
        if names[0] == names[1]:
            raise ModelError(f"{names[0]}: given twice; there is no difference to look at")
        shown = list(zip(names, (opened, other), strict=True))
    panels = [chosen(_collect(one, text, name, pad), layer, head) for name, one in shown]
    measured = {maps.name: _measured(one, maps, silence) for maps, (_, one) in zip(panels, shown, strict=True)}
    if against is not None:
        panels.append(difference(*panels))
    title = " and ".join(name for name, _ in shown) if against is not None else _name(opened)
    return Attention(title, tuple(panels), measured)


def _open(model: str | Path | Opened) -> Opened:
    return open_model(model) if isinstance(model, str | Path) else model


def _name(opened: Opened) -> str:
    """alibi, seed 0; or what a pretrained model is called."""
    return f"{opened.trial.variant}, seed {opened.trial.seed}" if isinstance(opened, Saved) else opened.name


def _beginning(opened: Opened) -> Opened:
    if not isinstance(opened, Saved):
        raise ModelError(f"{opened.name}: a pretrained model is not known as it was before training; a run folder is")
    return model_io.load(opened.folder, initial=True)


def _collect(opened: Opened, text: str, name: str, pad: bool | None) -> Maps:
    before, after = _frame(opened, text)
    reading = read(opened.tokenizer, text, opened.model.context, before=before, after=after)
    return collect(
        opened.model,
        reading,
        name=name,
        causal=opened.task == "language-model",
        pad_to=_padded(opened, len(reading.ids), pad),
        pad_id=opened.tokenizer.pad_id,
    )


def _padded(opened: Opened, length: int, pad: bool | None) -> int | None:
    """How long the text is with its padding. Where padding is not masked, all of it is shown, since it changes what
    the model sees."""
    context = opened.model.context
    if pad and context > MOST_PADDED:
        raise ModelError(f"{opened.name}: padded to its context of {context:,} tokens, a text cannot be shown")
    if pad is not None:
        return context if pad else None
    if not isinstance(opened, Saved) or opened.task != "classify":
        return None
    if not isinstance(opened.trial.model, model.Transformer):
        return None
    strip = length + max(2, length // 4)
    return min(context, strip) if opened.trial.model.mask_padding else context


def _frame(opened: Opened, text: str) -> tuple[Sequence[int], Sequence[int]]:
    """What the model expects before and after every text."""
    tokenizer = opened.tokenizer
    if isinstance(opened, Saved) and not isinstance(tokenizer, PretrainedTokenizer):
        # A language model of single rows is shown their beginning; its stop is only ever predicted.
        starts = opened.task == "language-model" and tokenizer.start_id is not None and tokenizer.stop_id is not None
        return ([tokenizer.start_id] if starts and tokenizer.start_id is not None else []), []
    assert isinstance(tokenizer, PretrainedTokenizer)
    if opened.task != "language-model":
        whole, words = tokenizer.framed(text), tokenizer.encode(text)
        at = next((i for i in range(len(whole)) if whole[i : i + len(words)] == words), 0)
        return whole[:at], whole[at + len(words) :]
    return tokenizer.prompt(""), []


def _measured(opened: Opened, maps: Maps, silence: bool) -> list[head_metrics.Row]:
    rows = head_metrics.of_maps(maps)
    if maps.causal:
        rows = _with_copying(opened, rows)
    return _with_rises(opened, maps, rows) if silence else rows


def _with_copying(opened: Opened, rows: list[head_metrics.Row]) -> list[head_metrics.Row]:
    tokenizer = opened.tokenizer
    special = (tokenizer.pad_id, tokenizer.unknown_id, tokenizer.start_id, tokenizer.stop_id)
    score, control = head_metrics.induction(
        opened.model, tokenizer.vocab_size, length=min(opened.model.context, COPYING), special=special
    )
    return [{**row, "induction": _at(score, row), "control": _at(control, row)} for row in rows]


def _with_rises(opened: Opened, maps: Maps, rows: list[head_metrics.Row]) -> list[head_metrics.Row]:
    score = _text_loss(opened, torch.tensor([maps.ids]))
    whole = score()
    found = []
    for row in rows:
        with head_metrics.silenced(opened.model, row["layer"] - 1, row["head"] - 1):
            found.append({**row, "rise": float((score() - whole).mean())})
    return found


def _text_loss(opened: Opened, ids: torch.Tensor) -> Callable[[], Weights]:
    """The loss of this text: of each next token, or of the class that the model names."""
    if opened.task == "encoder":
        raise ModelError(f"{opened.name}: an encoder without a task has no loss that could rise; leave out --silence")
    if opened.task == "language-model" and ids.shape[1] < 2:
        raise ModelError("a text of one token has no loss: there is nothing to predict from it")

    @torch.no_grad()
    def score() -> Weights:
        if opened.task == "language-model":
            logits = opened.model(ids).logits[0, :-1].float()
            return F.cross_entropy(logits, ids[0, 1:], reduction="none").numpy()
        return F.cross_entropy(_classes(opened, ids), named, reduction="none").numpy()

    with torch.no_grad():
        named = _classes(opened, ids).argmax(-1) if opened.task == "classify" else ids[0, :1]
    return score


def _classes(opened: Opened, ids: torch.Tensor) -> torch.Tensor:
    context = opened.model.context
    row = torch.full((1, context), opened.tokenizer.pad_id or 0)
    row[:, : ids.shape[1]] = ids
    logits: torch.Tensor = opened.model(row, torch.arange(context)[None] < ids.shape[1]).logits
    return logits


def _at(values: Weights, row: head_metrics.Row) -> float | None:
    value = float(values[row["layer"] - 1, row["head"] - 1])
    return None if np.isnan(value) else value
