"""The base decoder in jax: one jitted function per training step, with our weights, batches and mathematics.

python -m tools.bench.peer_jax FOLDER STEPS      train on the workload in FOLDER; print seconds per step and losses

The process is pinned to one core, because XLA has no reliable option for one thread. Compilation is not measured.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before jax starts its threads

import jax
from jax import numpy as jnp

from .workload import Workload, WorkloadShape

BETAS = (0.9, 0.999)
EPS = 1e-8
NORM_EPS = 1e-5
Weights = dict[str, Any]


def normalize(x: Any, weights: Weights, name: str) -> Any:
    """Return the layer norm of `x`."""
    centered = x - x.mean(-1, keepdims=True)
    normed = centered * jax.lax.rsqrt((centered**2).mean(-1, keepdims=True) + NORM_EPS)
    return normed * weights[f"{name}.inner.weight"] + weights[f"{name}.inner.bias"]


def apply_linear(x: Any, weights: Weights, name: str) -> Any:
    """Return `x` times a weight matrix, plus its bias."""
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def attend(x: Any, weights: Weights, name: str, heads: int) -> Any:
    """Return causal multi-head attention, (batch, length, width)."""
    batch_size, length, width = x.shape
    q, k, v = (
        (x @ weights[f"{name}.projection.{projection}.weight"].T).reshape(batch_size, length, heads, -1)
        for projection in ("query", "key", "value")
    )
    attended = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    return apply_linear(attended.reshape(batch_size, length, width), weights, f"{name}.output")


def compute_loss(weights: Weights, input_ids: Any, labels: Any, shape: WorkloadShape) -> Any:
    """Return the mean cross entropy of a batch."""
    x = weights["embedding.weight"][input_ids] + weights["positions.0.table.weight"][: input_ids.shape[1]]
    for index in range(shape.layers):
        layer = f"layers.{index}"
        normed = normalize(x, weights, f"{layer}.block.attention_norm")
        x = x + attend(normed, weights, f"{layer}.attention", shape.heads)
        hidden = apply_linear(normalize(x, weights, f"{layer}.block.feed_norm"), weights, f"{layer}.feedforward.up")
        x = x + apply_linear(jax.nn.relu(hidden), weights, f"{layer}.feedforward.down")
    log_probs = jax.nn.log_softmax(apply_linear(normalize(x, weights, "final_norm"), weights, "output"))
    return -jnp.take_along_axis(log_probs, labels[..., None], axis=-1).mean()


@partial(jax.jit, static_argnames="shape", donate_argnums=(0, 1, 2))
def train_step(
    weights: Weights, means: Weights, squares: Weights, step: Any, input_ids: Any, labels: Any, shape: WorkloadShape
) -> tuple[Weights, Weights, Weights, Any]:
    """Apply one step of Adam; return weights, both moment estimates and the loss."""
    loss, gradients = jax.value_and_grad(compute_loss)(weights, input_ids, labels, shape)
    means = jax.tree.map(lambda mean, gradient: BETAS[0] * mean + (1 - BETAS[0]) * gradient, means, gradients)
    squares = jax.tree.map(
        lambda square, gradient: BETAS[1] * square + (1 - BETAS[1]) * gradient**2, squares, gradients
    )
    mean_correction, square_correction = 1 - BETAS[0] ** (step + 1), 1 - BETAS[1] ** (step + 1)

    def update(weight: Any, mean: Any, square: Any) -> Any:
        return weight - shape.lr * (mean / mean_correction) / (jnp.sqrt(square / square_correction) + EPS)

    return jax.tree.map(update, weights, means, squares), means, squares, loss


def measure_steps(folder: Path, num_steps: int) -> dict[str, Any]:
    """Return the seconds of the fastest step, and the loss of every step."""
    workload = Workload.read(folder)
    weights = {name: jnp.asarray(tensor.numpy()) for name, tensor in workload.read_weights(0).items()}
    means, squares = ({name: jnp.zeros_like(weight) for name, weight in weights.items()} for _ in range(2))
    batches = [(jnp.asarray(ids.numpy()), jnp.asarray(labels.numpy())) for ids, labels, _ in workload.read_batches(0)]
    losses, seconds = [], []
    for step in range(num_steps):
        start_time = time.perf_counter()
        weights, means, squares, loss = train_step(
            weights, means, squares, jnp.float32(step), *batches[step], workload.shape
        )
        losses.append(float(loss))  # waits for the step
        seconds.append(time.perf_counter() - start_time)
    return {"seconds": min(seconds[1:]), "losses": losses}


if __name__ == "__main__":
    print(json.dumps(measure_steps(Path(sys.argv[1]), int(sys.argv[2]))))
