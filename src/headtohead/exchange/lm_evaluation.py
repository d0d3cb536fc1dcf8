"""Evaluate models with EleutherAI's lm-evaluation-harness. Importing this module registers its model `headtohead`.

Run as a module, it takes the arguments of the command `lm_eval`:

    python -m headtohead.exchange.lm_evaluation --model headtohead --model_args run=FOLDER --tasks TASK
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch

from headtohead.errors import MissingExtraError, ModelError
from headtohead.generation.generate import generate
from headtohead.generation.job import resolve_decoder
from headtohead.generation.likelihood import BATCH_SIZE, score_truncated_continuations
from headtohead.generation.prompt_encoding import encode_prompt, encode_prompt_and_continuation
from headtohead.generation.strategies import Strategy, build_strategy
from headtohead.saved_models.open_model import open_model

try:
    import lm_eval.models  # noqa: F401  registers its own models, which it does not do if there are others already
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
except ImportError as error:
    raise MissingExtraError("lm_eval", "lm-eval", "lm-evaluation-harness") from error

DEFAULT_MAX_NEW_TOKENS = 256


@register_model("headtohead")
class HeadToHeadLM(LM):  # type: ignore[misc]
    """A model of lm-evaluation-harness: any run folder or pretrained decoder that the commands accept."""

    def __init__(
        self, run: str, *, batch_size: int | str = BATCH_SIZE, device: str = "cpu", max_batch_size: int | None = None
    ) -> None:
        """`batch_size = "auto"` is the default, and `max_batch_size` has no effect. Without a GPU, cuda means cpu."""
        super().__init__()
        if device.startswith("cuda") and not torch.cuda.is_available():
            device = "cpu"  # cuda is the default of the command
        self.bundle = open_model(run)
        self.model, self.tokenizer = resolve_decoder(self.bundle)
        self.model.eval().to(device)  # type: ignore[attr-defined]
        self.batch_size = int(batch_size) if str(batch_size).isdigit() else BATCH_SIZE

    @property
    def tokenizer_name(self) -> str:
        return self.bundle.name.replace("/", "--")

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Return the log-likelihood of each continuation, and whether it is the greedy one."""
        pairs = [encode_prompt_and_continuation(self.tokenizer, *request.args) for request in requests]
        scores = score_truncated_continuations(self.model, pairs, self.batch_size)
        return [(score.log_likelihood, score.is_greedy) for score in scores]

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Return the log-likelihood of each text. Without a start token, that of its first token is not included."""
        pairs = [self._encode_whole_text(*request.args) for request in requests]
        scores = score_truncated_continuations(self.model, pairs, self.batch_size)
        return [score.log_likelihood for score in scores]

    def _encode_whole_text(self, text: str) -> tuple[list[int], list[int]]:
        """Return context and continuation for scoring a whole text: the start token if there is one, and the text."""
        if self.tokenizer.bos_id is None:
            return [], encode_prompt(self.tokenizer, text) if text else []
        return encode_prompt_and_continuation(self.tokenizer, "", text)

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Return the continuation of each context, up to the first stop string."""
        indices_by_settings = defaultdict(list)
        for index, request in enumerate(requests):
            indices_by_settings[json.dumps(request.args[1], sort_keys=True)].append(index)
        texts = [""] * len(requests)
        for settings_json, request_indices in indices_by_settings.items():
            settings = json.loads(settings_json)
            stop, max_new_tokens = settings.get("until") or [], settings.get("max_gen_toks", DEFAULT_MAX_NEW_TOKENS)
            # Leave room for the continuation where the context is long enough for both.
            room = self.model.context - max_new_tokens
            max_prompt_tokens = room if room > 0 else self.model.context
            prompts = [
                encode_prompt(self.tokenizer, requests[index].args[0])[-max_prompt_tokens:] for index in request_indices
            ]
            continuations = generate(
                self.bundle,
                prompts,
                _build_strategy(settings),
                max_new_tokens=max_new_tokens,
                stop=[stop] if isinstance(stop, str) else [text for text in stop if text],
                batch_size=self.batch_size,
            )
            for index, continuation in zip(request_indices, continuations, strict=True):
                texts[index] = continuation.text
        return texts


def _build_strategy(settings: dict[str, Any]) -> Strategy:
    """Return the decoding strategy for the generation settings of a task of lm-evaluation-harness."""
    temperature = settings.get("temperature", 1.0)
    if not settings.get("do_sample", False) or temperature == 0:
        return build_strategy("greedy")
    truncations = [name for name in ("top_k", "top_p", "min_p") if settings.get(name) not in (None, 0, 1.0)]
    if len(truncations) > 1:
        raise ModelError(f"generation settings: {' and '.join(truncations)} cannot be combined")
    truncation = {name: settings[name] for name in truncations}
    return build_strategy((truncations or ["sample"])[0].replace("_", "-"), temperature=temperature, **truncation)


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
