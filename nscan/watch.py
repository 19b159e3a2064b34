"""What the user wants to see of a run: the options of a call, and the profile that is written when it ends."""

import contextlib
import sys

from nscan import errors
from nscan.profile import collect
from nscan.spec import flag
from nscan.state import STATE


def marks(check_finite, progress, profile):
    """Turn the options of a call into marks of its loop."""
    options = {"finite": check_finite, "progress": progress, "profile": profile}
    for name, value in options.items():
        flag(value, "check_finite" if name == "finite" else name)
    if progress:
        tqdm_class()
    return tuple(sorted(name for name, value in options.items() if value))


@contextlib.contextmanager
def reported(wanted, name):
    """Context: a profile of what runs inside is written to stderr, unless one is being taken already."""
    if not wanted or STATE.profile is not None:
        yield
        return
    with collect() as taken:
        yield
    if taken.loops:
        print(taken.profile(name), file=sys.stderr)


def tqdm_class():
    """Return the class of progress bars, imported on use."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise errors.MissingPackageError("progress=True needs tqdm: pip install tqdm") from None
    return tqdm
