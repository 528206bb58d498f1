"""Trains a small Llama in JAX, data parallel: each process has all weights and its own part of a batch.

mpirun -np 2 python jax_llama.py --coordinator 127.0.0.1:29400          (one process: python jax_llama.py)
"""

import argparse
import os

import jax
import numpy as np
from jax import numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from scaling_study import observe  # which `scaling-study bench` brings along

LAYERS, HEADS, KV_HEADS, HEAD, HIDDEN, VOCABULARY, LENGTH = 2, 4, 2, 16, 192, 512, 64  # scaling_study's llama_tiny
WIDTH, KV = HEADS * HEAD, KV_HEADS * HEAD
BLOCK = {"attention_norm": (WIDTH,), "wq": (WIDTH, WIDTH), "wk": (KV, WIDTH), "wv": (KV, WIDTH), "wo": (WIDTH, WIDTH)}
BLOCK |= {"ffn_norm": (WIDTH,), "w1": (HIDDEN, WIDTH), "w2": (WIDTH, HIDDEN), "w3": (HIDDEN, WIDTH)}
SHAPES = {f"layers.{layer}.{name}": shape for layer in range(LAYERS) for name, shape in BLOCK.items()}
SHAPES |= {"tok_embeddings": (VOCABULARY, WIDTH), "norm": (WIDTH,), "output": (VOCABULARY, WIDTH)}


def norm(x, weight):
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5) * weight


def turned(x):
    """(b, heads, length, HEAD) -> the same, turned by rotary positions."""
    angles = jnp.outer(jnp.arange(x.shape[2]), 1e4 ** (jnp.arange(HEAD // 2) / (-HEAD // 2)))
    cosine, sine, (first, second) = jnp.cos(angles), jnp.sin(angles), jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


def attention(x, w):
    q, k, v = ((x @ w[name].T).reshape(*x.shape[:2], -1, HEAD).swapaxes(1, 2) for name in ("wq", "wk", "wv"))
    k, v = (jnp.repeat(y, HEADS // KV_HEADS, axis=1) for y in (turned(k), v))
    scores = jnp.where(jnp.tri(x.shape[1], dtype=bool), turned(q) @ k.swapaxes(2, 3) / HEAD**0.5, -jnp.inf)
    return (jax.nn.softmax(scores) @ v).swapaxes(1, 2).reshape(x.shape) @ w["wo"].T


def loss_of(weights, batch):
    """Mean over all tokens of (sequences, length + 1)."""
    x = weights["tok_embeddings"][batch[:, :-1]]
    for layer in range(LAYERS):
        w = {name: weights[f"layers.{layer}.{name}"] for name in BLOCK}
        x = x + attention(norm(x, w["attention_norm"]), w)
        y = norm(x, w["ffn_norm"])
        x = x + (jax.nn.silu(y @ w["w1"].T) * (y @ w["w3"].T)) @ w["w2"].T
    scores = jax.nn.log_softmax(norm(x, weights["norm"]) @ weights["output"].T)
    return -jnp.take_along_axis(scores, batch[:, 1:, None], axis=-1).mean()


def step(weights, batch):
    loss, gradients = jax.value_and_grad(loss_of)(weights, batch)
    return loss, jax.tree.map(lambda weight, gradient: weight - 0.5 * gradient, weights, gradients)


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--coordinator", default="", help="host:port of the first process; without it there is one")
    flags.add_argument("--batch-size", type=int, default=8, help="sequences of a process")
    flags.add_argument("--steps", type=int, default=1000)
    asked = flags.parse_args()
    rank, count = (int(os.environ.get(f"OMPI_COMM_WORLD_{name}", usual)) for name, usual in (("RANK", 0), ("SIZE", 1)))
    if asked.coordinator:  # a process that bench has stopped is silent for longer than the usual 100 s
        jax.distributed.initialize(asked.coordinator, count, rank, heartbeat_timeout_seconds=86_400)
    mesh, draw = Mesh(np.array(jax.devices()), ("data",)), np.random.default_rng(0)
    whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    first = {name: draw.normal(0, 0.02, shape) if len(shape) > 1 else np.ones(shape) for name, shape in SHAPES.items()}
    placed = jax.make_array_from_process_local_data
    weights = {name: placed(whole, value.astype(jnp.result_type(float))) for name, value in first.items()}
    trained = jax.jit(step, out_shardings=whole)
    for number in range(asked.steps):
        every = draw.integers(0, VOCABULARY, (count, asked.batch_size, LENGTH + 1), dtype=np.int32)
        loss, weights = trained(weights, placed(split, every[rank]))
        observe.step(asked.batch_size, float(loss))  # float() waits for the step
        if rank == 0 and number % 10 == 9:
            print(f"step {number + 1}: loss {float(loss)!r}", flush=True)


if __name__ == "__main__":
    main()
