"""
A filter whose window follows the image
=======================================

Each pixel becomes the mean of a window around it, and the window is as large as the image allows: it grows
where the image is flat and stays small at edges. The bounds of the windows are data, so the step slices
``image[:, t:b, l:r]`` with bounds that are known only while the loop runs. The gradient with respect to the
image comes from the same loop.
"""

import matplotlib.pyplot as plt
import numpy as np

import nscan as ns

HEIGHT, WIDTH, LARGEST, NOISE = 120, 160, 6, 0.12


# %%
# A picture with noise
# --------------------

def picture():
    """Draw three channels: a disc and a bar on a slope of colour."""
    y, x = np.mgrid[:HEIGHT, :WIDTH] / HEIGHT
    disc = np.hypot(y - 0.5, x - 0.45) < 0.3
    bar = (np.abs(y - 0.25) < 0.08) & (x > 0.6)
    red = 0.2 + 0.3 * x + 0.4 * disc
    green = 0.3 + 0.2 * y + 0.5 * bar
    blue = 0.6 - 0.3 * x - 0.2 * disc + 0.3 * bar
    return np.stack([red, green, blue])


rng = np.random.default_rng(0)
clean = picture()
noisy = clean + NOISE * rng.standard_normal(clean.shape)


# %%
# The filter
# ----------
# `nscan.map` runs the step once for each pixel. The step is what one would write for one pixel in NumPy.

def window_mean(t, b, l, r, image):
    """Mean of each channel over one window."""
    return np.mean(image[:, t:b, l:r], axis=(1, 2))


def bounds(radius):
    """Top, bottom, left, right of the window of each pixel, cut at the border."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    t, b = [np.clip(side, 0, HEIGHT).ravel() for side in (y - radius, y + radius + 1)]
    l, r = [np.clip(side, 0, WIDTH).ravel() for side in (x - radius, x + radius + 1)]
    return t, b, l, r


def smooth(image, windows):
    """Filter an image of shape (channels, height, width)."""
    return ns.map(window_mean, windows, image).T.reshape(image.shape)


# %%
# How large may a window be?
# --------------------------
# As large as possible, as long as the mean of no quarter of it leaves the mean of the whole by more than
# noise explains. The quarters are windows too, so the test is five more maps for each radius.

def admissible(image, radius):
    """Tell for each pixel whether the image looks flat within a radius."""
    t, b, l, r = bounds(radius)
    y, x = [grid.ravel() for grid in np.mgrid[:HEIGHT, :WIDTH]]
    whole = smooth(image, [t, b, l, r])
    quarters = [[t, y + 1, l, x + 1], [t, y + 1, x, r], [y, b, l, x + 1], [y, b, x, r]]
    spread = NOISE / (radius + 1)
    return np.all([np.abs(smooth(image, q) - whole) < 3.5 * spread for q in quarters], axis=(0, 1))


radius = np.zeros((HEIGHT, WIDTH), int)
growing = np.ones((HEIGHT, WIDTH), bool)
for k in range(1, LARGEST + 1):
    growing &= admissible(noisy, k)
    radius[growing] = k

windows = bounds(radius)
filtered = smooth(noisy, windows)


# %%
# Does it help?
# -------------

def error(image):
    """Root mean square distance from the clean picture."""
    return np.sqrt(np.mean((image - clean) ** 2))


fixed = {k: error(smooth(noisy, bounds(np.full_like(radius, k)))) for k in range(LARGEST + 1)}
best = min(fixed, key=fixed.get)
print(f"noisy {error(noisy):.4f}, best fixed window (radius {best}) {fixed[best]:.4f}, "
      f"adaptive {error(filtered):.4f}; windows of {(2 * radius.min() + 1) ** 2} to "
      f"{(2 * radius.max() + 1) ** 2} pixels")
assert error(filtered) < fixed[best] < error(noisy)

# %%
# The gradient
# ------------
# By the chain rule it is the transpose of the filter, applied to the error of each pixel: each window hands
# its share back to the pixels that it covers. We check it against a difference quotient in a random
# direction; the loss is quadratic, so the central difference is exact but for rounding.

value, gradient = ns.value_and_grad(lambda image: np.sum((smooth(image, windows) - clean) ** 2))(noisy)
direction = rng.standard_normal(noisy.shape)
there, back = [np.sum((smooth(noisy + h * direction, windows) - clean) ** 2) for h in (1e-3, -1e-3)]
quotient, product = (there - back) / 2e-3, np.sum(gradient * direction)
print(f"loss {value:.4f}; slope along a direction: {product:.8f} by the gradient, "
      f"{quotient:.8f} by differences")
assert gradient.shape == noisy.shape
assert abs(product - quotient) < 1e-6 * abs(quotient)

# %%
# Picture
# -------

figure, axes = plt.subplots(2, 2, figsize=(8, 6.4), layout="constrained")
shown = {"noisy": noisy, "filtered": filtered}
for ax, (title, image) in zip(axes[0], shown.items(), strict=True):
    ax.imshow(np.clip(image, 0, 1).transpose(1, 2, 0))
    ax.set_title(title)
figure.colorbar(axes[1, 0].imshow(radius), ax=axes[1, 0])
axes[1, 0].set_title("radius of the window")
size = np.abs(gradient).sum(axis=0)
figure.colorbar(axes[1, 1].imshow(size, vmax=np.quantile(size, 0.99)), ax=axes[1, 1])
axes[1, 1].set_title("size of the gradient")
for ax in axes.flat:
    ax.set_axis_off()
plt.show()
