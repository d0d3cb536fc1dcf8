"""Apply an opened model to a text: predict its class, or compute the loss of each token."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from headtohead.config.tasks import Target
from headtohead.data.tokenization.tokenizers import CorpusTokenizer
from headtohead.errors import ModelError, RequestError
from headtohead.experiment.schemas import ClassPrediction, TextScore, TokenLoss
from headtohead.generation.likelihood import iter_sliding_windows
from headtohead.nn.token_losses import compute_token_losses
from headtohead.pretrained.classifier import EncoderClassifier
from headtohead.pretrained.tokenizer import PretrainedTokenizer
from headtohead.saved_models.model_io import SavedModel
from headtohead.saved_models.open_model import ModelBundle


def _tokenize_for_classifier(bundle: ModelBundle, text: str) -> tuple[list[int], bool]:
    """Return the token ids of a text on which a classifier is run, truncated, and whether they were truncated."""
    if not text.strip():
        raise ModelError("the text is empty")
    max_length = bundle.model.context
    if isinstance(bundle.model, EncoderClassifier) and isinstance(bundle.tokenizer, PretrainedTokenizer):
        (token_ids,), num_truncated = bundle.tokenizer.encode_batch_with_special_tokens([text], max_length)
        return token_ids, bool(num_truncated)
    token_ids = bundle.tokenizer.encode(text)
    return token_ids[:max_length], len(token_ids) > max_length


def _describe_model_kind(bundle: ModelBundle) -> str:
    """Return what kind of model a text was given to, for messages about unsuitable models."""
    return "a model without a head" if bundle.target is Target.NONE else f"a model that predicts the {bundle.target}"


def _is_imported(bundle: ModelBundle) -> bool:
    return isinstance(bundle, SavedModel) and bundle.imported_from is not None


@torch.no_grad()
def predict_class(bundle: ModelBundle, text: str) -> ClassPrediction:
    """Run a classifier on a text: return its predicted class and the probability of each class."""
    if not bundle.target.is_class_label:
        raise ModelError(f"{bundle.name}: {_describe_model_kind(bundle)} does not predict classes; use `h2h score`")
    token_ids, is_truncated = _tokenize_for_classifier(bundle, text)
    # Models trained here expect the padding they were trained with; pretrained encoders mask padding.
    length = len(token_ids) if isinstance(bundle.model, EncoderClassifier) else bundle.model.context
    input_ids = torch.full((1, length), bundle.tokenizer.pad_id or 0)
    input_ids[0, : len(token_ids)] = torch.tensor(token_ids)
    attention_mask = torch.arange(length)[None] < len(token_ids)
    probabilities = bundle.model(input_ids, attention_mask).logits[0].softmax(-1).tolist()
    predicted_class = max(range(len(probabilities)), key=probabilities.__getitem__)
    return ClassPrediction(
        text=text,
        label=bundle.label_names[predicted_class],
        confidence=probabilities[predicted_class],
        probabilities=dict(zip(bundle.label_names, probabilities, strict=True)),
        unknown_tokens=sum(token_id == bundle.tokenizer.unk_id for token_id in token_ids),
        truncated=is_truncated,
    )


@torch.no_grad()
def score_text(bundle: ModelBundle, text: str, *, stride: int | None = None) -> TextScore:
    """Run a model on a text: return the loss of each token, and the text's perplexity.

    A text longer than the context is scored in several blocks. By default they do not overlap. With `stride`, each
    block predicts this many tokens, so that every token except those in the first block is predicted from at least
    context + 1 - stride preceding ones.
    """
    if not bundle.target.is_token_label:
        raise ModelError(f"{bundle.name}: {_describe_model_kind(bundle)} has no perplexity; use `h2h predict`")
    if not text.strip():
        raise ModelError("the text is empty")
    # Encode the text with the special tokens that the model was trained with.
    tokenizer = bundle.tokenizer
    if isinstance(tokenizer, PretrainedTokenizer):
        token_ids = tokenizer.encode_with_start_token(text)
    else:
        token_ids = tokenizer.encode(text)
        if tokenizer.bos_id is not None and tokenizer.eos_id is not None:
            is_imported_decoder = bundle.target.is_causal and _is_imported(bundle)
            token_ids = [tokenizer.bos_id, *token_ids, *([] if is_imported_decoder else [tokenizer.eos_id])]
    if len(token_ids) < 2:
        raise ModelError(f"{text!r} is a single token: there is nothing to predict")
    context = bundle.model.context
    if stride is not None and not (bundle.target.is_causal and 1 <= stride <= context):
        allowed_range = (
            f"from 1 to {context}, the context" if bundle.target.is_causal else "only for next-token prediction"
        )
        raise RequestError(f"stride {stride}: allowed {allowed_range} of {bundle.name}")
    # Score the text window by window.
    windows = list(iter_sliding_windows(len(token_ids), 1, context, stride or context))
    token_losses = (
        _score_next_tokens(bundle, token_ids, windows)
        if bundle.target.is_causal
        else score_masked_tokens(bundle, token_ids)
    )
    tokens = [
        TokenLoss(token=tokenizer.id_to_token(token_id), loss=loss, known=token_id != tokenizer.unk_id)
        for token_id, loss in token_losses
    ]
    mean_loss = sum(token.loss for token in tokens) / len(tokens)
    return TextScore(
        text=text,
        loss=mean_loss,
        perplexity=float(torch.tensor(mean_loss, dtype=torch.float64).exp()),
        tokens=tokens,
        blocks=len(windows),
    )


def _score_next_tokens(
    bundle: ModelBundle, token_ids: list[int], windows: list[tuple[int, int, int]]
) -> Iterator[tuple[int, float]]:
    """Run a language model on a text: yield each token id except the first, and its loss given its window."""
    sequence = torch.tensor(token_ids)
    for window_start, start, end in windows:
        logits = bundle.model(sequence[None, window_start : end - 1]).logits[0, start - window_start - 1 :]
        labels = sequence[start:end]
        yield from zip(labels.tolist(), compute_token_losses(logits, labels).tolist(), strict=True)


def score_masked_tokens(bundle: ModelBundle, token_ids: list[int]) -> Iterator[tuple[int, float]]:
    """Run a masked language model on a text: yield each content token and its loss when only it is masked."""
    tokenizer, context = bundle.tokenizer, bundle.model.context
    if not isinstance(tokenizer, CorpusTokenizer) or tokenizer.mask_id is None:
        raise ModelError(f"{bundle.name}: its tokenizer has no mask token")
    for start in range(0, len(token_ids), context):
        block = torch.tensor(token_ids[start : start + context])
        masked_copies = block.repeat(len(block), 1).fill_diagonal_(tokenizer.mask_id)
        logits = bundle.model(masked_copies).logits.diagonal().T
        losses = compute_token_losses(logits, block).tolist()
        special_ids = (tokenizer.bos_id, tokenizer.eos_id)
        yield from (
            (token_id, loss)
            for token_id, loss in zip(block.tolist(), losses, strict=True)
            if token_id not in special_ids
        )
