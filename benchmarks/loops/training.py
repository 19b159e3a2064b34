"""Training steps, after the benchmarks of Theano's paper (Bergstra and others 2010).

A loop runs minibatches; its states are the weights, and a step takes the gradient and goes down it.
"""

import functools

import numpy as np
from numba import njit

from benchmarks.harness import Loop

RATE = np.float32(0.01)


def model_data(rng, n, batch, sizes):
    """Draw minibatches of inputs, their classes, and weights."""
    inputs, classes = sizes[0], sizes[-1]
    data = {"xs": rng.random((n, batch, inputs)).astype(np.float32),
            "targets": np.eye(classes, dtype=np.float32)[rng.integers(0, classes, (n, batch))]}
    for k, (a, b) in enumerate(zip(sizes, sizes[1:], strict=False)):
        data[f"w{k}"] = (rng.standard_normal((a, b)) / np.sqrt(a)).astype(np.float32)
        data[f"b{k}"] = np.zeros(b, np.float32)
    return data


def descend(lib, loss, xs, targets, weights):
    """Run all minibatches; return the losses."""
    def step(weights, row):
        value, slopes = derivative(lib, loss)(*row, *weights)
        return tuple(w - RATE * g for w, g in zip(weights, slopes, strict=True)), value
    return (lib.loop(step, weights, (xs, targets))[1],)


def derivative(lib, loss):
    """Return the derivative of a loss by its weights."""
    def apply(x, target, *weights):
        positions = tuple(range(2, 2 + len(weights)))
        return lib.value_and_grad(functools.partial(loss, lib), positions)(x, target, *weights)
    return apply


def cross_entropy(lib, logits, target):
    """Mean negative log-probability of the classes."""
    return -lib.mean(lib.sum(target * lib.log_softmax(logits), axis=-1))


def logistic_loss(lib, x, target, w, b):
    """Loss of logistic regression."""
    return cross_entropy(lib, x @ w + b, target)


def logistic(lib, xs, targets, w0, b0):
    """Losses along the minibatches."""
    return descend(lib, logistic_loss, xs, targets, (w0, b0))


def mlp_loss(lib, x, target, w0, b0, w1, b1):
    """Loss of a network with a hidden layer."""
    return cross_entropy(lib, lib.tanh(x @ w0 + b0) @ w1 + b1, target)


def mlp(lib, xs, targets, w0, b0, w1, b1):
    """Losses along the minibatches."""
    return descend(lib, mlp_loss, xs, targets, (w0, b0, w1, b1))


@njit
def cross_entropy_numba(z, target):
    """Replace logits by the derivative of the loss, and return the loss."""
    total, batch = np.float32(0), len(z)
    for b in range(batch):
        e = np.exp(z[b] - z[b].max())
        p = e / e.sum()
        for j in range(z.shape[1]):
            if target[b, j] > 0:
                total -= np.log(p[j])
            z[b, j] = (p[j] - target[b, j]) / np.float32(batch)
    return total / np.float32(batch)


@njit
def logistic_numba(xs, targets, w0, b0):
    """The same by hand."""
    w, b, losses = w0.copy(), b0.copy(), np.empty(len(xs), np.float32)
    for t in range(len(xs)):
        z = np.dot(xs[t], w) + b
        losses[t] = cross_entropy_numba(z, targets[t])
        w -= RATE * np.dot(xs[t].T, z)
        b -= RATE * z.sum(axis=0)
    return (losses,)


@njit
def mlp_numba(xs, targets, w0, b0, w1, b1):
    """The same by hand."""
    w0, b0, w1, b1, losses = w0.copy(), b0.copy(), w1.copy(), b1.copy(), np.empty(len(xs), np.float32)
    for t in range(len(xs)):
        h = np.tanh(np.dot(xs[t], w0) + b0)
        z = np.dot(h, w1) + b1
        losses[t] = cross_entropy_numba(z, targets[t])
        d = np.dot(z, w1.T) * (np.float32(1) - h * h)
        w1 -= RATE * np.dot(h.T, z)
        b1 -= RATE * z.sum(axis=0)
        w0 -= RATE * np.dot(xs[t].T, d)
        b0 -= RATE * d.sum(axis=0)
    return (losses,)


WITHOUT = {"numpy": "has no derivatives", "pytensor": "does not take gradients within a step"}
LOOPS = [
    *[Loop(f"logistic_{batch}", f"Logistic regression 784-10, 200 training steps, batch {batch}",
           functools.partial(model_data, batch=batch, sizes=(784, 10)), 200, 200, logistic, numba=logistic_numba,
           without=WITHOUT, tolerance=1e-4) for batch in (1, 10, 60)],
    *[Loop(f"mlp_{batch}", f"Network 784-500-10, 40 training steps, batch {batch}",
           functools.partial(model_data, batch=batch, sizes=(784, 500, 10)), 40, 40, mlp, numba=mlp_numba,
           without=WITHOUT, tolerance=1e-4) for batch in (1, 10, 60)],
]
