"""Settings, read when they are used: an assigned value beats the environment, which beats the default."""

import os

DEFAULTS = {
    "mode": ("NSCAN_MODE", "compiled"),
    "cache_dir": ("NSCAN_CACHE_DIR", None),
    "cache_bytes": ("NSCAN_CACHE_BYTES", 1 << 30),
    "checkpoint_bytes": ("NSCAN_CHECKPOINT_BYTES", 1 << 30),
}
MODES = ("compiled", "python")


class Config:
    """Settings of the process, as attributes.

    Attributes
    ----------
    mode : str
        ``"compiled"`` (default) or ``"python"``: trace and tape, run equation by equation in NumPy.
        Environment: ``NSCAN_MODE``.
    cache_dir : str or None
        Folder of the compiled kernels; the user's cache folder by default. Environment: ``NSCAN_CACHE_DIR``.
    cache_bytes : int
        Size above which the oldest kernels leave the folder. Environment: ``NSCAN_CACHE_BYTES``.
    checkpoint_bytes : int
        What the rows that a loop keeps for its backward pass may take under ``checkpoint="auto"``. Environment:
        ``NSCAN_CHECKPOINT_BYTES``.

    Examples
    --------
    >>> import nscan as ns
    >>> ns.config.mode
    'compiled'
    """

    def __init__(self):
        object.__setattr__(self, "_assigned", {})

    def __getattr__(self, name):
        if name not in DEFAULTS:
            raise AttributeError(f"nscan has no setting {name!r}; there are {', '.join(DEFAULTS)}")
        if name in self._assigned:
            return self._assigned[name]
        variable, default = DEFAULTS[name]
        return _checked(name, os.environ.get(variable, default))

    def __setattr__(self, name, value):
        if name not in DEFAULTS:
            raise AttributeError(f"nscan has no setting {name!r}; there are {', '.join(DEFAULTS)}")
        self._assigned[name] = _checked(name, value)

    def __delattr__(self, name):
        self._assigned.pop(name, None)

    def __repr__(self):
        return "Config(" + ", ".join(f"{name}={getattr(self, name)!r}" for name in DEFAULTS) + ")"


def _checked(name, value):
    if name == "mode" and value not in MODES:
        raise ValueError(f"mode is {value!r}; it must be one of {', '.join(map(repr, MODES))}")
    if name in ("cache_bytes", "checkpoint_bytes"):
        return int(value)
    return value


config = Config()
