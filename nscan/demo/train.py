"""Training: Adam, and the loop over minibatches."""

import dataclasses
import math
import time

import numpy as np

import nscan as ns
from nscan.demo import model

RATE = 1.5e-2
CLIP = 1.0
SMOOTH = 50


class Adam:
    """The optimiser of Kingma and Ba (2015), on a dict of arrays that it changes in place.

    Parameters
    ----------
    weights : dict of ndarray
    decay : (float, float)
        Of the running means of the gradient and of its square.
    """

    def __init__(self, weights, decay=(0.9, 0.99), epsilon=1e-8):
        self.weights = weights
        self.decay = decay
        self.epsilon = epsilon
        self.count = 0
        self.means = {name: np.zeros_like(x) for name, x in weights.items()}
        self.squares = {name: np.zeros_like(x) for name, x in weights.items()}

    def update(self, gradient, rate):
        """Take one step."""
        self.count += 1
        a, b = self.decay
        rate *= math.sqrt(1 - b ** self.count) / (1 - a ** self.count)
        for name, g in gradient.items():
            mean, square = self.means[name], self.squares[name]
            mean += (1 - a) * (g - mean)
            square += (1 - b) * (g * g - square)
            self.weights[name] -= rate * mean / (np.sqrt(square) + self.epsilon)


def clip(gradient, limit):
    """Shorten a gradient whose norm, over all its arrays, is above a limit."""
    norm = math.sqrt(sum(float(np.vdot(g, g)) for g in gradient.values()))
    scale = min(1.0, limit / norm) if norm > 0 else 1.0
    return {name: g * scale for name, g in gradient.items()}


@dataclasses.dataclass
class Run:
    """What a training run leaves behind.

    Attributes
    ----------
    weights : dict of ndarray
    bits : list of float
        Bits per character of each minibatch, before its update.
    calls : list of float
        Seconds of each call for value and gradient.
    updates : float
        Seconds of clipping and Adam.
    seconds : float
        Seconds of the whole loop.
    last : tuple
        Arguments of the last call after the weights.
    """

    weights: dict
    bits: list = dataclasses.field(default_factory=list)
    calls: list = dataclasses.field(default_factory=list)
    updates: float = 0.0
    seconds: float = 0.0
    last: tuple = ()

    def recent(self):
        """Mean loss of the last minibatches."""
        return float(np.mean(self.bits[-SMOOTH:]))


def train(weights, lanes, steps, bar, rate=RATE):
    """Train in place; the learning rate falls to zero along half a cosine.

    Parameters
    ----------
    weights : dict of ndarray
    lanes : nscan.demo.text.Lanes
    steps : int
        Number of minibatches.
    bar : tqdm.tqdm
        Progress bar.
    rate : float
        Learning rate at the start.

    Returns
    -------
    Run
    """
    run, adam = Run(weights), Adam(weights)
    value_and_grad = ns.value_and_grad(model.loss, has_aux=True)
    start = time.perf_counter()
    state = ()
    for k in range(steps):
        inputs, targets, fresh = lanes.batch(k)
        if fresh:
            state = model.initial_state(inputs.shape[1], len(weights["recur"]))
        run.last = inputs, targets, *state
        before = time.perf_counter()
        (bits, state), gradient = value_and_grad(weights, *run.last)
        after = time.perf_counter()
        adam.update(clip(gradient, CLIP), rate * (1 + math.cos(math.pi * k / steps)) / 2)
        run.updates += time.perf_counter() - after
        run.calls.append(after - before)
        run.bits.append(float(bits))
        bar.set_postfix_str(f"{run.recent():.3f} bits/char", refresh=False)
        bar.update()
    run.seconds = time.perf_counter() - start
    return run
