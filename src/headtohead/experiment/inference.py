"""What a trained model is asked for: the class of a text, or the loss of a sentence token by token."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from headtohead.errors import ModelError
from headtohead.experiment.open_model import Opened
from headtohead.pretrained.classifier import FineTuned
from headtohead.pretrained.tokenizer import PretrainedTokenizer


def _ids(loaded: Opened, text: str) -> tuple[list[int], bool]:
    """Tokens, cut at the model's context; and whether something was cut."""
    if not text.strip():
        raise ModelError("the text is empty")
    room = loaded.model.context
    if isinstance(loaded.model, FineTuned) and isinstance(loaded.tokenizer, PretrainedTokenizer):
        (framed,), cut = loaded.tokenizer.framed_rows([text], room)
        return framed, bool(cut)
    ids = loaded.tokenizer.encode(text)
    return ids[:room], len(ids) > room


def _kind(loaded: Opened) -> str:
    return "an encoder" if loaded.task == "encoder" else f"a {loaded.task} model"


@torch.no_grad()
def predict(loaded: Opened, text: str) -> dict[str, Any]:
    """The class of a text and how sure the model is."""
    if loaded.task != "classify":
        raise ModelError(f"{loaded.name}: {_kind(loaded)} gives no classes; `h2h score` reads it")
    ids, cut = _ids(loaded, text)
    # A network of ours is given padding as in training; a pretrained encoder masks it.
    width = len(ids) if isinstance(loaded.model, FineTuned) else loaded.model.context
    row = torch.full((1, width), loaded.tokenizer.pad_id or 0)
    row[0, : len(ids)] = torch.tensor(ids)
    mask = torch.arange(width)[None] < len(ids)
    shares = loaded.model(row, mask).logits[0].softmax(-1).tolist()
    best = max(range(len(shares)), key=shares.__getitem__)
    return {
        "text": text,
        "class": loaded.label_names[best],
        "confidence": shares[best],
        "classes": dict(zip(loaded.label_names, shares, strict=True)),
        "unknown": sum(i == loaded.tokenizer.unknown_id for i in ids),
        "cut": cut,
    }


@torch.no_grad()
def score(loaded: Opened, text: str) -> dict[str, Any]:
    """Loss and perplexity of a sentence, token by token. What lies beyond the context is read in further blocks."""
    if loaded.task != "language-model":
        raise ModelError(f"{loaded.name}: {_kind(loaded)} gives no perplexity; `h2h predict` reads it")
    if not text.strip():
        raise ModelError("the text is empty")
    tokenizer = loaded.tokenizer
    if isinstance(tokenizer, PretrainedTokenizer):
        ids = tokenizer.prompt(text)
    else:
        ids = tokenizer.encode(text)
        if tokenizer.start_id is not None and tokenizer.stop_id is not None:
            ids = [tokenizer.start_id, *ids, tokenizer.stop_id]
    if len(ids) < 2:
        raise ModelError(f"{text!r} is one token: there is nothing to predict from it")
    room = loaded.model.context
    rows = []
    for begin in range(0, len(ids) - 1, room):
        piece = torch.tensor(ids[begin : begin + room + 1])
        logits = loaded.model(piece[None, :-1]).logits[0].float()
        losses = F.cross_entropy(logits, piece[1:], reduction="none").tolist()
        rows += [
            {"token": tokenizer.token(int(i)), "loss": loss, "known": int(i) != tokenizer.unknown_id}
            for i, loss in zip(piece[1:], losses, strict=True)
        ]
    mean = sum(row["loss"] for row in rows) / len(rows)
    return {
        "text": text,
        "loss": mean,
        "perplexity": float(torch.tensor(mean, dtype=torch.float64).exp()),
        "tokens": rows,
        "blocks": -(-(len(ids) - 1) // room),
    }
