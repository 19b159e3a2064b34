"""Peak memory of the bilateral windows over an image, above inputs and outputs: run by `test_windows` in its own process."""

import ctypes
import gc
import sys

import numpy as np

import nscan as ns


def window(t, b, l, r, y, x, image):
    """Mean over a window, with weights that fall with the distance of colours."""
    part = image[:, t:b, l:r]
    w = np.exp(-np.sum((part - image[:, y, x][:, None, None]) ** 2, axis=0) / 0.1)
    return np.sum(part * w, axis=(1, 2)) / np.sum(w)


def problem(size, radius=6):
    """An image of shape (3, size, size), and for each pixel the bounds of its window and its place."""
    rng = np.random.default_rng(0)
    image, r = rng.random((3, size, size)), rng.integers(0, radius, (size, size))
    y, x = np.mgrid[:size, :size]
    bounds = [np.clip(side, 0, size).ravel() for side in (y - r, y + r + 1, x - r, x + r + 1)]
    return image, [*bounds, y.ravel(), x.ravel()]


def value_and_cotangent(image, places, cotangent):
    """The filtered image, and the cotangent of the image."""
    out, pull = ns.vjp(lambda image: ns.map(window, places, image), image)
    return out, pull(cotangent)[0]


def status(name):
    """An entry of the status of this process, in bytes."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def extra(function, *args):
    """Peak of memory while a function runs, above what was there before and what it returns."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # what was freed and kept would hide what is allocated
    if trim is not None:
        trim(0)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = status("VmRSS")
    out = function(*args)
    return status("VmHWM") - before - sum(x.nbytes for x in out)


if __name__ == "__main__":
    image, places = problem(512)
    few = [p[:4096] for p in places]
    cotangent = np.ones((len(places[0]), 3))
    value_and_cotangent(image, few, cotangent[:4096])
    forward = extra(lambda: (ns.map(window, places, image),))
    both = extra(value_and_cotangent, image, places, cotangent)
    sys.stdout.write(f"{forward} {both}\n")
