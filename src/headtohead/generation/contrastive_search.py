"""Contrastive search: choose among the most likely tokens the one that differs from the text so far."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from headtohead.errors import ModelError
from headtohead.generation.logits_processors import GenerationState
from headtohead.generation.session import WINDOW_SHIFT_DIVISOR, get_device
from headtohead.generation.strategies import Strategy
from headtohead.nn.protocol import Decoder


class _ContrastiveSearchState:
    """A sequence with the hidden states of its tokens, (length, width), and its next-token logits, (1, vocab)."""

    def __init__(self, model: Decoder, prompt_ids: Sequence[int]) -> None:
        self.model = model
        self.token_ids = list(prompt_ids)
        self.window_start = max(0, len(self.token_ids) - model.context)
        self._prefill_window()

    @torch.inference_mode()
    def _prefill_window(self) -> None:
        """Process the tokens of the window with an empty cache."""
        self.cache = self.model.create_cache()
        hidden_states, self.logits = self._run_model([self.token_ids[self.window_start :]])
        self.hidden_states = hidden_states[0]

    def _run_model(self, sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Return hidden states, (batch, length, width), and next-token logits, (batch, vocab), of token sequences."""
        input_ids = torch.tensor([list(sequence) for sequence in sequences], device=get_device(self.model))
        cache_argument = {} if self.cache is None else {"cache": self.cache}
        output = self.model(input_ids, **cache_argument)  # type: ignore[operator]
        if output.last_hidden_state is None:
            raise ModelError("contrastive search requires hidden states, which this model does not return")
        return output.last_hidden_state.float(), output.logits[:, -1].float()

    @torch.inference_mode()
    def select_next_token(self, strategy: Strategy, prompt_length: int, stop_token_ids: tuple[int, ...]) -> int:
        """Select the next token by contrastive search, append it and update the state."""
        k, alpha = strategy.get_option("k"), float(strategy.get_option("alpha"))
        logits, state = self.logits, GenerationState([self.token_ids], [prompt_length], stop_token_ids)
        for processor in strategy.logits_processors:
            logits = processor(logits, state)
        candidates = logits.softmax(-1)[0].topk(min(k, logits.shape[-1]))
        if len(self.token_ids) + 1 - self.window_start > self.model.context:
            self.window_start += max(1, self.model.context // WINDOW_SHIFT_DIVISOR)
            self._prefill_window()
        hidden_states, next_logits = self._evaluate_candidates(candidates.indices.tolist())
        similarity = F.cosine_similarity(hidden_states[:, None], self.hidden_states[None], dim=-1).amax(-1)
        selected_index = int(((1 - alpha) * candidates.values - alpha * similarity).argmax())
        if self.cache is not None:
            self.cache.select_rows(torch.tensor([selected_index], device=similarity.device))
        self.hidden_states = torch.cat((self.hidden_states, hidden_states[selected_index : selected_index + 1]))
        self.logits = next_logits[selected_index : selected_index + 1]
        token_id = int(candidates.indices[selected_index])
        self.token_ids.append(token_id)
        return token_id

    def _evaluate_candidates(
        self, candidate_ids: Sequence[int]
    ) -> tuple[Float[Tensor, "candidates width"], Float[Tensor, "candidates vocab"]]:
        """Return the hidden state of each candidate token, and the next-token logits after it."""
        if self.cache is None:
            prefix = self.token_ids[self.window_start :]
            hidden_states, logits = self._run_model([[*prefix, token_id] for token_id in candidate_ids])
        else:
            self.cache.select_rows(torch.zeros(len(candidate_ids), dtype=torch.long, device=self.logits.device))
            hidden_states, logits = self._run_model([[token_id] for token_id in candidate_ids])
        return hidden_states[:, -1], logits


def contrastive_search(
    model: Decoder, prompt_ids: Sequence[int], strategy: Strategy, stop_token_ids: tuple[int, ...]
) -> Iterator[tuple[int, bool]]:
    """Generate tokens with contrastive search, Su et al. 2022, arXiv:2202.06417.

    Among the k most likely tokens, selects the one with the largest (1 - alpha) * probability - alpha * similarity,
    where similarity is the largest cosine similarity between its hidden state and those of the preceding tokens.

    Yields:
        The next token, and whether the sequence has exceeded the context length.
    """
    state = _ContrastiveSearchState(model, prompt_ids)
    while True:
        yield state.select_next_token(strategy, len(prompt_ids), stop_token_ids), state.window_start > 0
