"""Every error of the library: one class per situation, each also the builtin that NumPy would raise.

The docstrings teach: what goes wrong, why, and what to write instead. The page *Errors* of the documentation
is generated from them.
"""

import numpy as np


class NscanError(Exception):
    """Base class of all errors that nscan raises on purpose."""


class SpecError(NscanError, ValueError):
    """An argument of the call itself is wrong.

    Wrong: ``ns.scan(step, [dict(input=x, tap=[0])])`` has a key that nobody reads, so a typo would pass
    silently. Right: ``dict(input=x, taps=[0])``.
    """


class ArityError(NscanError, TypeError):
    """The step takes another number of arguments than the call hands over.

    A step receives the taps of each sequence as listed, then the taps of each state, then the
    non_sequences. Wrong: ``ns.scan(lambda x: x, x, h0)``; the step gets ``x`` and the state.
    Right: ``ns.scan(lambda x, h: h + x, x, h0)``.
    """


class OutputsError(NscanError, ValueError):
    """The step returns another number (or another kind) of outputs than ``outputs_info`` has entries.

    Wrong: two entries in ``outputs_info`` and ``return h``. Right: ``return h, c``; an output that feeds
    nothing back has the entry ``None``.
    """


class OutputTypeError(NscanError, TypeError):
    """The step returns something that is no array: ``None``, a string, an object.

    Wrong: a step that ends without ``return``. Right: return arrays or numbers, as many as there are
    entries in ``outputs_info``.
    """


class TapError(NscanError, ValueError):
    """A tap is not allowed where it stands.

    Taps of a state are distinct negative integers: the value at tap 0 is the one that the step is about
    to compute. Taps of a sequence are integers of any sign.
    """


class LengthError(NscanError, ValueError):
    """A sequence or an initial state has too few rows, or nothing says how many steps to run.

    Nothing is ever read outside an array. Wrong: ``ns.scan(step, x, n_steps=10)`` with 6 rows in ``x``.
    Right: fewer steps, or more rows. A loop without sequences needs ``n_steps`` or ``ns.until``.
    """


class StepsTypeError(NscanError, TypeError):
    """``n_steps`` is no integer. Wrong: ``n_steps=10.0``. Right: ``n_steps=10``."""


class DtypeError(NscanError, TypeError):
    """An array has a dtype that kernels do not know: object, string, datetime, float16, longdouble.

    Wrong: a column of strings among the sequences. Right: ``x.astype(float)``, or leave it out.
    Masked arrays are refused because a mask would be dropped silently: pass ``x.filled(value)``.
    """


class StateShapeError(NscanError, ValueError):
    """A state changes its shape from step to step.

    Wrong: ``return np.concatenate([h, x])`` for a state ``h``: no stacked array has such rows.
    Right: a buffer of full size that the step fills, and an index as a second state.
    """


class StateTypeError(NscanError, TypeError):
    """A state and what the step returns for it have dtypes that do not promote to one.

    Wrong: an initial state of integers and a step that returns strings or records.
    """


class StructureError(NscanError, TypeError):
    """A nest of arrays (tuple, list, dict) has another structure than the one it must match.

    Wrong: ``loop`` with ``init=(h, c)`` and a step that returns ``[h, c], y``.
    Right: the carry that the step returns has the structure of ``init``.
    """


class TracedValueError(NscanError, TypeError):
    """A traced array was used where Python or NumPy needs its value.

    A step is run once, on traced arrays that know shape and dtype and no values. Wrong: ``if h > 0:``,
    ``float(h)``, ``math.tanh(h)``, ``W[k]`` with a real array ``W`` and a traced ``k``.
    Right: ``np.where(h > 0, a, b)`` or ``ns.cond``, ``np.tanh(h)``, ``ns.array(W)[k]``.
    """


class EscapedError(NscanError, RuntimeError):
    """A traced array left the step that made it (through a list, an attribute, a global).

    Wrong: ``history.append(h)`` in a step, used afterwards. Right: return ``h`` as an output; its rows
    come back stacked.
    """


class ReadOnlyError(NscanError, ValueError):
    """A step writes to something that belongs to the outside: a non_sequence, an array of an outer loop.

    Wrong: ``table[k] += 1`` with ``table`` among the non_sequences: the loop would see each step's
    write. Right: make ``table`` a state and return it, or write to a copy.
    """


class UnsupportedError(NscanError, TypeError):
    """A NumPy function or an option of one that traced arrays do not support; the text names what does."""


class UnsupportedIndexError(NscanError, IndexError):
    """A way of indexing that traced arrays do not support; the text names what to write instead."""


class AxisRangeError(NscanError, IndexError):
    """A constant index or axis is outside its array, found while the step is traced."""


class HiddenStateError(NscanError, RuntimeError):
    """The step gives other numbers when it is called again: ``np.random``, a counter, a clock.

    The step is traced once; what it draws there would be repeated in every step. Right: `nscan.random`, whose
    draws are functions of a key and the number of the step; or draw before the loop and pass the draws as a
    sequence.
    """


class IndexRangeError(NscanError, IndexError):
    """An index that is computed in a step is out of range; the text names step, line, index and size."""


class SingularError(NscanError, np.linalg.LinAlgError):
    """A matrix is singular (or not positive definite) at some step, as ``np.linalg`` would report it."""


class SizeError(NscanError, ValueError):
    """Two sizes that are known only while the loop runs do not fit together."""


class ArithmeticStepError(NscanError, ValueError):
    """An operation of a step has no result for its operands, such as an integer to a negative power."""


class GradientTypeError(NscanError, TypeError):
    """A derivative with respect to something that has none: integers, bools, a random draw.

    Wrong: ``ns.grad(f)(np.arange(3))``. Right: ``ns.grad(f)(np.arange(3.0))``.
    """


class NotScalarError(NscanError, TypeError):
    """``grad`` of a function that does not return one real number.

    Right: reduce it (``np.sum``), or use ``ns.vjp`` with a cotangent, or ``ns.jacobian``.
    """


class CotangentError(NscanError, ValueError):
    """A cotangent or tangent has another structure, shape or dtype than the value it belongs to."""


class ChangedError(NscanError, RuntimeError):
    """An array that ``vjp`` still needs was overwritten between the forward and the backward pass."""


class NonFiniteError(NscanError, FloatingPointError):
    """A loop with ``check_finite=True`` computed a NaN or an infinity; the text says where the first one was made."""


class MissingPackageError(NscanError, ImportError):
    """An optional package is needed: tqdm for ``progress=True``, Matplotlib for the picture of a profile."""


class GradientCheckError(NscanError, AssertionError):
    """``check_grads`` found a derivative that differs from its numerical value."""


class KernelError(NscanError, RuntimeError):
    """A compiled kernel could not be built or loaded; the text holds the reason and where its source is."""
