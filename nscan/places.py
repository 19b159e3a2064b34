"""Places in the user's code: which frame an equation was made in, and what SciPy was asked for."""

import sys

import numpy as np

from nscan.state import STATE

_OURS = {}
_LITERALS = {}
_ROOTS = tuple(m.__file__.rpartition("/")[0] for m in (np,)) + (__file__.rpartition("/")[0],)


def user_place():
    """Return (code object, instruction) of the innermost frame outside of nscan and NumPy.

    While a tape is replayed or differentiated, its equations say where they were made.
    """
    if STATE.where is not None:
        return STATE.where
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        ours = _OURS.get(code)
        if ours is None:
            name = code.co_filename
            ours = _OURS[code] = not is_users(name)
        if not ours:
            return code, frame.f_lasti
        frame = frame.f_back
    return None


def is_literal(x):
    """Tell whether a number is written in the user's code, where it can never be another one.

    The tape may hold such a number; one that the code was given is an operand of the loop, and may change.
    """
    frame = sys._getframe(1)
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return False
    code = frame.f_code
    found = _LITERALS.get(code)
    if found is None:
        found = _LITERALS[code] = {id(c) for c in code.co_consts}
    return id(x) in found


def is_users(file):
    """Tell whether a file holds the user's code: not NumPy's, SciPy's, Numba's or ours."""
    foreign = file.startswith((*_ROOTS, "<nscan", "<__array_function__")) or "/scipy/" in file or "/numba/" in file
    return not foreign


def scipy_caller():
    """Return the names of SciPy's functions between here and the user's code, the innermost first."""
    names, frame = [], sys._getframe(1)
    while frame is not None and not is_users(frame.f_code.co_filename):
        if "/scipy/" in frame.f_code.co_filename:
            names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names
