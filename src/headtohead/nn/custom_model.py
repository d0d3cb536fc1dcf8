"""Custom models: any nn.Module from a user's file that maps token ids to logits, adapted to the model protocol.

`forward` may return a tensor, a tuple that starts with the logits, or an object with `.logits` (transformers). A
decoder with `forward(idx, targets=None)` (nanoGPT) also receives its input as targets, because without targets it may
return logits for the last position only. It is called once per forward pass.
"""

import inspect
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn

from headtohead.config.tables.model import CustomModelConfig
from headtohead.errors import ModelError
from headtohead.nn.kv_cache import KVCache
from headtohead.nn.protocol import ModelOutput
from headtohead.nn.user_imports import import_network_class

CONSTRUCTOR_ARGUMENT_ALIASES = {
    "vocab_size": ("vocab_size", "vocab", "vocabulary", "n_vocab", "num_embeddings"),
    "context": ("context", "block_size", "context_length", "max_len", "n_ctx", "max_seq_len"),
    "classes": ("classes", "num_classes", "n_classes", "num_labels"),
}
CONFIG_ARGUMENT_NAMES = ("config", "cfg", "args", "params", "hparams")
"""Names of the argument of a constructor that takes a single configuration object, as in `GPT(config)`."""


class CustomModel(nn.Module):
    """Adapts a user's module to the model protocol, without a KV cache or attention weights."""

    def __init__(
        self,
        model_config: CustomModelConfig,
        vocab_size: int,
        num_classes: int | None,
        *,
        base_folder: Path = Path("."),
    ) -> None:
        """Import the network of a user's file and build it."""
        super().__init__()
        self.model_config, self.context, self.num_classes, self.vocab_size = (
            model_config,
            model_config.context,
            num_classes,
            vocab_size,
        )
        module_class = import_network_class(model_config.module, base_folder)
        available_arguments: dict[str, Any] = {
            "vocab_size": vocab_size,
            "context": model_config.context,
            "classes": num_classes,
        }
        try:
            self.inner = _construct_network(module_class, available_arguments, model_config.options)
        except TypeError as error:
            raise ModelError(
                f"{model_config.module}: {error} (model.options = {model_config.options or '{}'}; vocab_size, context "
                "and classes are passed if the constructor accepts them; put other arguments in model.options)"
            ) from error
        except Exception as error:
            raise ModelError(f"{model_config.module}: {type(error).__name__} in the constructor: {error}") from error
        self._forward_parameters = frozenset(inspect.signature(self.inner.forward).parameters)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        cache: KVCache | None = None,
        output_attentions: bool = False,
    ) -> ModelOutput:
        """Return the module's logits, (batch, length, vocab) or (batch, classes)."""
        if output_attentions:
            raise ModelError(f"{self.model_config.module}: custom models do not return attention weights")
        if cache is not None:
            raise ModelError(f"{self.model_config.module}: custom models have no cache")
        optional_inputs: dict[str, Tensor] = {}
        if attention_mask is not None and "attention_mask" in self._forward_parameters:
            optional_inputs["attention_mask"] = attention_mask
        if self.num_classes is None and "targets" in self._forward_parameters:
            optional_inputs["targets"] = (
                input_ids  # without targets, some decoders return logits for the last position only
            )
        logits = extract_logits(self.inner(input_ids, **optional_inputs))
        if self.num_classes is None and logits.shape[:-1] == (input_ids.numel(),):
            logits = logits.unflatten(0, input_ids.shape)  # given targets, some decoders flatten their logits
        expected_shape = (len(input_ids), self.num_classes) if self.num_classes else (*input_ids.shape, self.vocab_size)
        if tuple(logits.shape) != expected_shape:
            raise ModelError(
                f"{self.model_config.module}: logits have shape {tuple(logits.shape)}, expected {expected_shape}"
            )
        return ModelOutput(logits)

    @property
    def has_training_loss(self) -> bool:
        """Return whether the network defines `training_loss(input_ids, labels)`."""
        return callable(getattr(self.inner, "training_loss", None))

    def compute_training_loss(self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Return the network's own training loss. Labels are -100 where nothing is predicted."""
        method: Any = self.inner.training_loss
        accepts_mask = "attention_mask" in inspect.signature(method).parameters
        loss = method(input_ids, labels, **({"attention_mask": attention_mask} if accepts_mask else {}))
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise ModelError(f"{self.model_config.module}: training_loss must return a scalar tensor, got {loss!r:.80}")
        return loss.reshape(())

    def list_parameter_groups(self, lr: float) -> list[dict[str, Any]] | None:
        """Return the parameter groups of the network's `parameter_groups(lr)`: dicts of params, lr and weight_decay.
        None if it has no such method.
        """
        method: Any = getattr(self.inner, "parameter_groups", None)
        if not callable(method):
            return None
        groups = [{**group, "params": list(group["params"])} for group in method(lr)]
        prefix = f"{self.model_config.module}: parameter_groups"
        for group in groups:
            if unknown := set(group) - {"params", "lr", "weight_decay"}:
                raise ModelError(f"{prefix}: unknown key {min(unknown)!r} (available: params, lr, weight_decay)")
        counts = Counter(id(parameter) for group in groups for parameter in group["params"])
        misplaced_names = [n for n, p in self.inner.named_parameters() if p.requires_grad and counts[id(p)] != 1]
        if misplaced_names:
            listed_names = ", ".join(misplaced_names[:4])
            raise ModelError(f"{prefix}: each trainable parameter must be in one group, unlike {listed_names}")
        return groups

    def next_token_logits(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, *, cache: KVCache | None = None
    ) -> Tensor:
        """Return next-token logits, (batch, vocab)."""
        logits: Tensor = self(input_ids, attention_mask, cache=cache).logits
        return logits[:, -1]

    def build_decode_step(self, cache: KVCache) -> Callable[[Tensor], Tensor]:
        """Raise ModelError: custom models have no KV cache."""
        raise ModelError(f"{self.model_config.module}: custom models have no cache")

    def create_cache(self) -> None:
        """Return None: each decoding step processes the whole sequence."""
        return

    @property
    def can_pad(self) -> bool:
        """Return False: the module counts positions itself, so left padding would shift them."""
        return False


def _construct_network(
    module_class: type[nn.Module], available_arguments: dict[str, Any], options: dict[str, Any]
) -> nn.Module:
    """Return the network of a custom model, built from sizes and options, or from one configuration object if its
    constructor takes only that, as in `GPT(config)`.
    """
    parameters = list(inspect.signature(module_class).parameters.values())
    name = parameters[0].name if len(parameters) == 1 else ""
    if name not in CONFIG_ARGUMENT_NAMES or name in options:
        return module_class(**{**_select_constructor_arguments(module_class, available_arguments), **options})
    config_class = _find_config_class(module_class, parameters[0].annotation)
    if config_class is None:
        arguments = {
            alias: available_arguments[key]
            for key, aliases in CONSTRUCTOR_ARGUMENT_ALIASES.items()
            for alias in aliases
        }
        return module_class(SimpleNamespace(**{**arguments, **options}))
    return module_class(config_class(**{**_select_constructor_arguments(config_class, available_arguments), **options}))


def _find_config_class(module_class: type, annotation: Any) -> type | None:
    """Return the configuration class of a custom network: the annotated one, or one named like the network.

    The latter is a class such as `GPTConfig` for the network `GPT`. None if there is none.
    """
    module_names = vars(sys.modules[module_class.__module__])
    if isinstance(annotation, str):
        annotation = module_names.get(annotation)
    if isinstance(annotation, type) and annotation is not inspect.Parameter.empty:
        return annotation
    network_names = [base.__name__ for base in module_class.__mro__ if issubclass(base, nn.Module)]
    config_names = [f"{network_name}{suffix}" for network_name in network_names for suffix in ("Config", "Args")]
    candidates = (module_names.get(name) for name in [*config_names, "Config", "ModelConfig", "ModelArgs"])
    return next((candidate for candidate in candidates if isinstance(candidate, type)), None)


def _select_constructor_arguments(module_class: type, available_arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments, of those available, that the constructor of a custom network accepts."""
    parameters = inspect.signature(module_class).parameters
    arguments = {}
    for argument, value in available_arguments.items():
        alias = next((alias for alias in CONSTRUCTOR_ARGUMENT_ALIASES[argument] if alias in parameters), None)
        if alias is not None and value is not None:
            arguments[alias] = value
    return arguments


def extract_logits(model_output: Any) -> Tensor:
    """Return the logits from the output of a user's network: a tensor, `.logits`, or the first item of a tuple."""
    if isinstance(model_output, Tensor):
        return model_output
    logits = getattr(model_output, "logits", None)  # checked first: a named tuple may start with the loss
    if isinstance(logits, Tensor):
        return logits
    if isinstance(model_output, tuple | list) and model_output and isinstance(model_output[0], Tensor):
        return model_output[0]
    raise ModelError(
        f"a custom model must return logits as a tensor, a tuple or .logits, got {type(model_output).__name__}"
    )
