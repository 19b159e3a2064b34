"""A recurrent language model: gradient of a piece of text, and the step down it."""

import functools

import numpy as np

from benchmarks.harness import Loop
from benchmarks.loops.networks import draw, project

RATE = np.float32(0.01)


def text_data(rng, n, batch, hidden=128, letters=64):
    """Draw text, and a model."""
    text = np.eye(letters, dtype=np.float32)[rng.integers(0, letters, (n + 1, batch))]
    return {"xs": text[:-1], "targets": text[1:], "embed": draw(rng, 1, letters, hidden),
            "recur": draw(rng, 1 / np.sqrt(hidden), hidden, hidden), "out": draw(rng, 1 / np.sqrt(hidden), hidden, letters)}


def language(lib, xs, targets, embed, recur, out):
    """Loss of each step of the text."""
    def step(x, target, h, recur, out):
        h = lib.tanh(x + h @ recur)
        return h, -lib.mean(lib.sum(target * lib.log_softmax(h @ out), axis=-1))
    inputs = project(xs, embed)
    return lib.scan(step, [inputs, targets], [inputs[0] * 0, None], [recur, out])[1:]


def language_loss(lib, rows, xs, targets, embed, recur, out):
    """Mean loss."""
    return lib.mean(rows[0])


LOOPS = [
    Loop(f"language_{batch}", f"Recurrent language model, 128 units, 64 letters, 50 steps, batch {batch}",
         functools.partial(text_data, batch=batch), 50, 50, language, language_loss, ("embed", "recur", "out"),
         tolerance=1e-3) for batch in (1, 10, 60)
]
