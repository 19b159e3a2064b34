"""Places in the user's code: which frame an equation was made in, and what SciPy was asked for."""

import sys
from opcode import opmap

import numpy as np

from nscan.state import STATE
from nscan.tape import Place

_ROOTS = tuple(m.__file__.rpartition("/")[0] for m in (np,)) + (__file__.rpartition("/")[0],)
# For each code object seen, by id: its places by instruction if it is the user's, else None. `_KEPT` keeps the ids valid.
_PLACES, _KEPT, _LIMIT = {}, [], 100_000
# Where the places of a code object have the ids of its constants.
LITERALS = -1


def user_place(depth=2):
    """Return the `Place` in the innermost frame outside of nscan and NumPy, `depth` frames above or farther.

    While a tape is replayed or differentiated, its equations say where they were made.
    """
    if STATE.where is not None:
        return STATE.where
    frame = sys._getframe(depth)
    while frame is not None:
        code = frame.f_code
        places = _PLACES.get(id(code), code)
        if places is code:
            places = _enter(code)
        if places is not None:
            instruction = frame.f_lasti
            found = places.get(instruction)
            return found if found is not None else _place(code, places, instruction)
        frame = frame.f_back
    return None


def _place(code, places, instruction):
    """Make the place of an instruction; once Python has specialised it, the frame stands at one of its cache entries."""
    start, text = instruction, code.co_code
    while start > 0 and text[start] == opmap.get("CACHE"):
        start -= 2
    found = places.get(start)
    if found is None:
        found = places[start] = Place(code, start, places[LITERALS])
    places[instruction] = found
    return found


def _enter(code):
    if len(_KEPT) >= _LIMIT:
        _PLACES.clear()
        _KEPT.clear()
    _KEPT.append(code)
    _PLACES[id(code)] = {LITERALS: frozenset(map(id, code.co_consts))} if is_users(code.co_filename) else None
    return _PLACES[id(code)]


def is_literal(x, place):
    """Tell whether a float or complex number is written in the user's code at a place, where it can never be another one.

    The tape may hold such a number; one that the code was given is an operand of the loop, and may change.
    """
    return type(x) in (float, complex) and place is not None and id(x) in place.literals


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
