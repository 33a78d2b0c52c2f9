"""Make the demo model's gate rows: `python -m colibri.models.gate_rows OUT.safetensors`.

Run once; the result is committed as `data/smollm2_moe_gate_rows.safetensors`, because k-means and BLAS differ
by machine. For each layer the dense model's FFN inputs over `data/calibration.txt` are clustered by direction
(spherical k-means), and a gate row is `GATE_GAIN` times a unit-length centroid: tokens of one kind go to one
expert, unevenly, as in trained models.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt

from colibri.models.demo_source import find_gguf
from colibri.models.dtypes import bf16_from_fp32
from colibri.models.gguf_llama import GgufLlama
from colibri.models.gguf_tokenizer import build_tokenizer
from colibri.models.safetensors_writer import TensorSpec, write_file

DATA = Path(__file__).parent / "data"
GATE_ROWS = DATA / "smollm2_moe_gate_rows.safetensors"
GATE_TENSOR = "gate_rows"
GATE_GAIN = 4.0

_SEED = 2212_05055
_RESTARTS = 4
_ITERATIONS = 50

Matrix = npt.NDArray[np.float32]


def ffn_inputs(model: GgufLlama, passages: list[list[int]]) -> list[Matrix]:
    """The FFN's normed inputs, one `[rows, hidden]` per layer, over all passages.

    Plain NumPy llama forward pass, each passage from position 0. A passage's first token is left out: it
    takes the attention that no token wants, and its huge activations would claim a cluster of their own.
    """
    shape = model.shape
    embedding = model.tensor("model.embed_tokens.weight")
    hidden = [embedding[np.array(passage)] for passage in passages]
    inputs: list[Matrix] = []
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        weights = {
            name: model.tensor(prefix + name + ".weight")
            for name in (
                *("input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
                *(
                    "self_attn.o_proj",
                    "post_attention_layernorm",
                    "mlp.gate_proj",
                    "mlp.up_proj",
                    "mlp.down_proj",
                ),
            )
        }
        rows = []
        for i, x in enumerate(hidden):
            x = x + _attention(model, _norm(x, weights["input_layernorm"], shape.rms_eps), weights)
            normed = _norm(x, weights["post_attention_layernorm"], shape.rms_eps)
            rows.append(normed[1:])
            gate = normed @ weights["mlp.gate_proj"].T
            up = normed @ weights["mlp.up_proj"].T
            hidden[i] = x + (gate / (1 + np.exp(-gate)) * up) @ weights["mlp.down_proj"].T
        inputs.append(np.concatenate(rows))
    return inputs


def _norm(x: Matrix, weight: Matrix, eps: float) -> Matrix:
    scaled = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + np.float32(eps)) * weight
    return np.asarray(scaled, dtype=np.float32)


def _attention(model: GgufLlama, x: Matrix, weights: dict[str, Matrix]) -> Matrix:
    shape, length = model.shape, len(x)

    def heads(name: str, count: int) -> Matrix:
        return (x @ weights[name].T).reshape(length, count, shape.head_dim).transpose(1, 0, 2)

    half = shape.head_dim // 2
    angle = np.arange(length)[:, None] * shape.rope_theta ** (-np.arange(half) / half)[None, :]
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)

    def rotate(v: Matrix) -> Matrix:
        low, high = v[..., :half], v[..., half:]
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)

    q = rotate(heads("self_attn.q_proj", shape.heads))
    share = shape.heads // shape.kv_heads
    k = rotate(heads("self_attn.k_proj", shape.kv_heads)).repeat(share, axis=0)
    v = heads("self_attn.v_proj", shape.kv_heads).repeat(share, axis=0)
    scores = q @ k.transpose(0, 2, 1) / np.float32(shape.head_dim**0.5)
    scores += np.triu(np.full((length, length), -np.inf, dtype=np.float32), 1)
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    scores /= scores.sum(axis=-1, keepdims=True)
    merged = (scores @ v).transpose(1, 0, 2).reshape(length, -1) @ weights["self_attn.o_proj"].T
    return np.asarray(merged, dtype=np.float32)


def unit_centroids(rows: Matrix, count: int, generator: np.random.Generator) -> tuple[Matrix, float]:
    """Spherical k-means: `count` unit centroids `[count, hidden]` of the rows' directions, and the mean
    cosine.
    """
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    centroids = unit[generator.integers(len(unit))][None]
    while len(centroids) < count:
        distance = np.maximum(1 - (unit @ centroids.T).max(axis=1), 0).astype(np.float64)
        pick = generator.choice(len(unit), p=distance / distance.sum())
        centroids = np.concatenate([centroids, unit[pick][None]])
    for _ in range(_ITERATIONS):
        nearest = (unit @ centroids.T).argmax(axis=1)
        for c in range(count):
            mine = unit[nearest == c]
            mean = mine.sum(axis=0) if len(mine) else unit[(unit @ centroids.T).max(axis=1).argmin()]
            centroids[c] = mean / np.linalg.norm(mean)
    return centroids, float((unit @ centroids.T).max(axis=1).mean())


def make_gate_rows(model: GgufLlama, experts: int) -> Matrix:
    """Gate rows `[layers, experts, hidden]`, fp32."""
    tokenizer = build_tokenizer(model.vocabulary())
    text = (DATA / "calibration.txt").read_text(encoding="utf-8")
    passages = [tokenizer.encode(passage.strip("\n")).ids for passage in text.split("\n%%\n")]
    result = []
    for layer, rows in enumerate(ffn_inputs(model, passages)):
        tries = [
            unit_centroids(rows, experts, np.random.default_rng([_SEED, layer, attempt]))
            for attempt in range(_RESTARTS)
        ]
        centroids, cosine = max(tries, key=lambda found: found[1])
        load = np.bincount((rows @ centroids.T).argmax(axis=1), minlength=experts) / len(rows)
        shares = " ".join(f"{share:.1%}" for share in load)
        print(f"layer {layer:2d}: {len(rows)} rows, mean cosine {cosine:.3f}, first choices {shares}")
        result.append(centroids * np.float32(GATE_GAIN))
    return np.stack(result).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--experts", type=int, default=8)
    options = parser.parse_args()
    rows = make_gate_rows(GgufLlama(find_gguf()), options.experts)
    write_file(options.out, [TensorSpec(GATE_TENSOR, "bf16", rows.shape)], lambda _: bf16_from_fp32(rows))
    print(f"{options.out}: {rows.shape} bf16")


if __name__ == "__main__":
    main()
