"""What the main job says at its end: where the time went, and the curve of the loss."""

import statistics
import time

import numpy as np

import nscan as ns
from nscan.demo import model

REPEATS = 15


def time_shares(run):
    """Divide the time of a training run.

    Forward and backward are measured apart after the training, on the last minibatch: `nscan.vjp` runs the
    forward kernel, the function it returns the backward kernel. Both take a time ``a + b * characters``; b is
    the loop, a what a call costs whatever its length: the trace of step and gradient, and the launch. These
    three divide the time of all calls but for what the first took longer: that is the compilation (or the
    loading of kernels from the cache).

    Parameters
    ----------
    run : nscan.demo.train.Run

    Returns
    -------
    dict of float
        Seconds, by name; they add up to ``run.seconds``.
    """
    compiling = max(run.calls[0] - statistics.median(run.calls[1:] or [0.0]), 0.0)
    calls = sum(run.calls) - compiling
    parts = _parts(run)
    scale = calls / sum(parts.values())
    out = {name: seconds * scale for name, seconds in parts.items()}
    out["compile"] = compiling
    out["Adam"] = run.updates
    out["the rest"] = run.seconds - sum(out.values())
    return out


def _parts(run):
    """Seconds of forward loop, backward loop and trace, for one call."""
    length = len(run.last[0])
    if length == 1:
        forward, backward = _time_call(run, 1)
        return {"forward": forward, "backward": backward, "trace": 0.0}
    short, long = _time_call(run, 1), _time_call(run, length)
    slopes = [max(b - a, 0.0) / (length - 1) for a, b in zip(short, long, strict=True)]
    forward, backward = [slope * length for slope in slopes]
    return {"forward": forward, "backward": backward, "trace": max(sum(long) - forward - backward, 0.0)}


def _time_call(run, length):
    """Seconds of forward and of backward call on the first characters of the last minibatch (medians)."""
    inputs, targets, h, c = run.last
    rest = inputs[:length], targets[:length], h, c
    forward, backward = [], []
    for _ in range(REPEATS):
        start = time.perf_counter()
        bits, pull, _ = ns.vjp(lambda w: model.loss(w, *rest), run.weights, has_aux=True)
        middle = time.perf_counter()
        pull(np.ones_like(bits))
        backward.append(time.perf_counter() - middle)
        forward.append(middle - start)
    return statistics.median(forward), statistics.median(backward)


NOTES = {
    "forward": "the loop over the characters",
    "backward": "the loop of the gradient",
    "trace": "recording step and gradient, calling the kernels",
    "compile": "what the first call took longer than a later one",
    "Adam": "clipping and update, in NumPy",
    "the rest": "minibatches, progress bar",
}


def table(shares):
    """Lay out the division of the time as text."""
    total = sum(shares.values())
    lines = [f"time of the training: {total:.1f} s (forward, backward and trace measured apart, afterwards)"]
    for name, note in NOTES.items():
        seconds = shares[name]
        lines.append(f"  {name:<9} {100 * seconds / total:5.1f} %  {seconds:6.2f} s  {note}")
    return "\n".join(lines)


def plot(bits, path, smooth):
    """Draw the curve of the loss.

    Parameters
    ----------
    bits : list of float
    path : path
        File to write; its ending says the format.
    smooth : int
        Minibatches in the running mean.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot(np.arange(1, len(bits) + 1), bits, color="0.75", linewidth=0.8, label="each minibatch")
    if len(bits) > smooth:
        mean = np.convolve(bits, np.full(smooth, 1 / smooth), mode="valid")
        axes.plot(np.arange(smooth, len(bits) + 1), mean, label=f"mean of {smooth}")
    axes.set_xlabel("minibatch")
    axes.set_ylabel("bits per character")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
