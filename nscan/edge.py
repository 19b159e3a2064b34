"""The edge of a trace: calls the user's function and turns what goes wrong inside it into errors about their code."""

import numpy as np

from nscan import errors
from nscan.array import as_operand, instead
from nscan.places import is_users
from nscan.tape import Where
from nscan.trace import Traced

INDEX_HINT = "only integers, slices"


class until:
    """Stop a loop after the step for which a condition holds; returned beside the outputs of a step.

    The row of that step is kept (a post-test). A loop with `until` needs no length.

    Parameters
    ----------
    condition : 0-d bool

    Examples
    --------
    >>> import nscan as ns
    >>> ns.scan(lambda x: (2 * x, ns.until(x > 20)), outputs_info=1)
    array([ 2,  4,  8, 16, 32, 64])
    """

    __slots__ = ("condition",)

    def __init__(self, condition):
        self.condition = condition


def check_function(f, what, advice=""):
    """Raise unless f can be called."""
    if not callable(f):
        raise errors.SpecError(f"{what} must be a function, got {type(f).__name__} object {f!r:.60}{advice}")


def call(fn, args):
    """Call the user's function on traced arrays; errors that NumPy hid or made obscure speak of the user's line."""
    check_function(fn, f"what is called with {len(args)} argument{'s' * (len(args) != 1)}")
    try:
        return fn(*args)
    except errors.NscanError:
        raise
    except Exception as error:
        hidden = _ours(error)
        if hidden is not None:
            raise hidden from None
        translated = _translate(error)
        if translated is not None:
            raise translated from error
        raise


def _ours(error):
    while error is not None:
        error = error.__cause__ or error.__context__
        if isinstance(error, errors.NscanError):
            return error
    return None


def _translate(error):
    """Return an error of ours for a foreign one, or None after adding a note to it."""
    place = user_line(error)
    at = f" at {place}: {place.text}" if place else ""
    text = str(error)
    if isinstance(error, IndexError) and INDEX_HINT in text:
        return errors.UnsupportedIndexError(f"a real array is indexed with a traced integer{at}; write ns.array(table)[index] "
                                            "(or make the table a non_sequence)")
    kind = type(error).__name__
    if kind == "TypingError" or "numba" in type(error).__module__:
        return errors.TracedValueError(f"a Numba-compiled function got a traced array{at}; call its Python original: "
                                       "helper.py_func(...)")
    if isinstance(error, TypeError) and "<traced array" in text:
        return errors.TracedValueError(f"a real function got a traced array{at} ({text}){instead(place)}")
    if isinstance(error, (TypeError, ValueError)) and ("dtype('O')" in text or "object" in text or "sequence" in text):
        error.add_note(f"nscan: raised while a step was traced{at}. Arrays of traced scalars made by np.array([a, b]) are "
                       "object arrays: use np.stack or ns.array, ns.logsumexp for SciPy's")
    return None


def user_line(error):
    """Find the innermost place in the user's code in an error's traceback."""
    found, tb = None, error.__traceback__
    while tb is not None:
        name = tb.tb_frame.f_code.co_filename
        if is_users(name):
            found = Where(name, tb.tb_lineno)
        tb = tb.tb_next
    return found


def outputs_of(result, name):
    """Split what a step returned into a list of outputs and the condition of `until` (or None)."""
    outs, stop = _listed(result), None
    if outs and isinstance(outs[-1], until):
        stop = condition(outs.pop().condition, f"the condition of until in {name!r}")
        outs = _listed(outs[0]) if len(outs) == 1 else outs
    early = [k for k, x in enumerate(outs) if isinstance(x, until)]
    if early:
        raise errors.OutputTypeError(f"output {early[0]} of {name!r} is ns.until; it stands behind all outputs: return outputs, "
                                     "ns.until(condition)")
    return [leaf(x, f"output {k} of {name!r}") for k, x in enumerate(outs)], stop


def _listed(result):
    return list(result) if isinstance(result, (tuple, list)) and not hasattr(result, "_fields") else [result]


def condition(x, what):
    """Return what decides about a loop as a 0-d bool."""
    c = leaf(x, what)
    if not hasattr(c, "dtype"):
        c = np.asarray(c)
    if c.shape not in ((), (1,)):
        raise errors.OutputTypeError(f"{what} must be 0-d, got shape {c.shape}")
    c = c if c.shape == () else c[0]
    return c if c.dtype.kind == "b" else c != 0


def leaf(x, what):
    """Check that a returned value is an array or a number."""
    if x is None or isinstance(x, (str, bytes, dict, set)) or callable(x) and not hasattr(x, "dtype"):
        raise errors.OutputTypeError(f"{what} is a {type(x).__name__} ({x!r:.40}), not an array")
    try:
        x = as_operand(x)
    except errors.DtypeError as error:
        raise errors.OutputTypeError(f"{what}: {error}") from None
    if isinstance(x, Traced) and x.base is not None:
        x.sync()
    return x
