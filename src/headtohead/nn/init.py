"""Build what a spec asks for, with every tensor drawn from (seed, name)."""

import hashlib
from pathlib import Path

import psutil
import torch
from torch import Tensor, nn

from headtohead.config import model as config_model
from headtohead.config import pretrained
from headtohead.errors import ModelError
from headtohead.nn.custom_model import OwnModel
from headtohead.nn.torch_rng import drawing
from headtohead.nn.transformer import Transformer
from headtohead.pretrained import classifier, layer_dropping
from headtohead.pretrained.classifier import FineTuned
from headtohead.pretrained.layer_dropping import Learner

BYTES = 4


def create(
    model: config_model.Model,
    vocab: int,
    classes: int | None = None,
    *,
    seed: int = 0,
    base: Path = Path("."),
    frequencies: Tensor | None = None,
) -> Transformer | OwnModel | FineTuned | Learner:
    """The model of this spec at step 0 of this seed. `base` is where a file of the user's own is looked for;
    `frequencies`, how often train shows each word, is where an output bias may start (without it, as all others do)."""
    if isinstance(model, pretrained.Pretrained):
        return layer_dropping.begin(model) if classes is None else classifier.begin(model, classes, seed=seed)
    _check_room(model, vocab)
    if isinstance(model, config_model.OwnModel):
        with drawing(seed, "initial"):
            return OwnModel(model, vocab, classes, base=base)
    with drawing(seed, "initial"):
        built = Transformer(model, vocab, classes)
    initialise(built, seed)
    _start_embeddings(built)
    if classes is None:
        _start_output(built, frequencies)
    return built


def _check_room(model: config_model.Transformer | config_model.OwnModel, vocab: int) -> None:
    """An error where not even the words' vectors and the layers' projections would fit into memory. On the meta device
    nothing is kept."""
    if isinstance(model, config_model.OwnModel) or torch.empty(0).device.type == "meta":
        return
    projections = 4 * model.width * model.heads * model.head_width
    needed = BYTES * (vocab * model.width + model.layers * projections)
    free = psutil.virtual_memory().available
    if needed > free:
        raise ModelError(
            f"no room for a model of width {model.width:,}, {model.layers:,} layers and {vocab:,} words in memory: it "
            f"needs at least {needed / 2**30:.1f} GB, and {free / 2**30:.1f} GB are free"
        )


@torch.no_grad()
def _start_embeddings(model: Transformer) -> None:
    """torch draws words' vectors with a standard deviation of 1; the spec may want less."""
    model.embedding.weight.mul_(model.spec.embedding_start)


@torch.no_grad()
def _start_output(model: Transformer, frequencies: Tensor | None) -> None:
    """The output layer as the spec wants it at step 0: what is not drawn at random."""
    if model.spec.output_start == "zero":
        model.output.weight.zero_()
    if model.spec.output_bias == "frequencies" and frequencies is not None:
        # Half a showing for a word that was never shown, so that its logarithm exists.
        shown = frequencies.double().clamp_min(0.5)
        model.output.bias.copy_((shown / shown.sum()).log())


def initialise(model: nn.Module, seed: int) -> None:
    """Draw the tensors of every module that can be drawn anew from (seed, its name)."""
    for name, module in model.named_modules():
        reset = getattr(module, "reset_parameters", None)  # torch's own convention
        if callable(reset):
            with drawing(seed, "initial", name):
                reset()


def tensor_hashes(model: nn.Module) -> dict[str, str]:
    """A hash of each tensor by name: the proof that two variants began alike."""
    return {name: _hash(tensor) for name, tensor in model.state_dict().items()}


def _hash(tensor: torch.Tensor) -> str:
    """shape:hash, so that a reader can tell another shape from other numbers."""
    content = tensor.detach().cpu().contiguous().numpy().tobytes()
    return f"{'x'.join(map(str, tensor.shape))}:{hashlib.sha256(content).hexdigest()[:16]}"
