"""The model: an LSTM with peephole weights that predicts the next character.

References
----------
Gers and Schmidhuber (2000), *Recurrent nets that time and count*: the gates see the cell.
"""

import math

import numpy as np

import nscan as ns


def cell(k, h, c, w):
    """Feed one character of each lane; return state, cell and log-probabilities of the next character."""
    z = w["embed"][k] + h @ w["recur"] + w["bias"]
    i, f, g, o = np.split(z, 4, axis=-1)
    i = ns.sigmoid(i + w["peep"][0] * c)
    f = ns.sigmoid(f + w["peep"][1] * c)
    c = f * c + i * np.tanh(g)
    o = ns.sigmoid(o + w["peep"][2] * c)
    h = o * np.tanh(c)
    return h, c, ns.log_softmax(h @ w["out"] + w["offset"], axis=-1)


def step(k, target, h, c, w):
    """Feed one character and count the bits that the model needs for the one that follows."""
    h, c, logp = cell(k, h, c, w)
    bits = -np.mean(np.take_along_axis(logp, target[:, None], axis=-1)) / math.log(2)
    return h, c, bits


def loss(w, ks, targets, h, c):
    """Bits per character of a minibatch, and the state after it."""
    hs, cs, bits = ns.scan(step, [ks, targets], [h, c, None], w)
    return np.mean(bits), (hs[-1], cs[-1])


def initial_weights(rng, characters, hidden):
    """Draw weights.

    Parameters
    ----------
    rng : numpy.random.Generator
    characters : int
        Size of the alphabet.
    hidden : int
        Number of cells.

    Returns
    -------
    dict of ndarray of float32
    """
    spread = 1 / math.sqrt(hidden)

    def normal(scale, *shape):
        return (scale * rng.standard_normal(shape)).astype(np.float32)

    w = {
        "embed": normal(2.0, characters, 4 * hidden),
        "recur": normal(spread, hidden, 4 * hidden),
        "bias": np.zeros(4 * hidden, np.float32),
        "peep": np.zeros((3, hidden), np.float32),
        "out": normal(spread, hidden, characters),
        "offset": np.zeros(characters, np.float32),
    }
    w["bias"][hidden:2 * hidden] = 1  # keep what the cell holds (Gers, Schmidhuber and Cummins 2000)
    return w


def initial_state(lanes, hidden):
    """Return state and cell before the first character: zeros."""
    return np.zeros((lanes, hidden), np.float32), np.zeros((lanes, hidden), np.float32)


def write(rng, w, start, length, temperature):
    """Let the model write.

    Adding Gumbel noise to log-probabilities and taking the largest draws a character from them.

    Parameters
    ----------
    rng : numpy.random.Generator
    w : dict of ndarray
    start : int
        Code of the character before the first.
    length : int
        Number of characters.
    temperature : float
        Below 1: more of what the model finds likely.

    Returns
    -------
    ndarray of int64, shape (length,)
    """

    def draw(noise, k, h, c, w, temperature):
        h, c, logp = cell(k, h, c, w)
        return np.argmax(logp / temperature + noise, axis=-1), h, c

    noise = rng.gumbel(size=(length, 1, w["offset"].size)).astype(np.float32)
    states = [np.array([start]), *initial_state(1, w["recur"].shape[0])]
    return ns.scan(draw, noise, states, [w, np.float32(temperature)])[0][:, 0]
