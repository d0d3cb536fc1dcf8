"""Text generation: decoding strategies, logits processors, sampling, beam search and likelihoods."""
