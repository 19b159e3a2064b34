"""Addresses of library functions: SciPy's special functions, LAPACK helpers, sorting."""

import numba.extending

from nscan import errors

# Fused types of scipy.special.cython_special: the double variant of each function.
SPECIAL = {"psi": ("__pyx_fuse_1psi",), "erfinv": ("__pyx_fuse_0erfinv", "erfinv"), "erfcx": ("__pyx_fuse_1erfcx",),
           "log_ndtr": ("__pyx_fuse_1log_ndtr",), "ndtri": ("ndtri",), "i0": ("i0",), "i1": ("i1",), "i0e": ("i0e",), "i1e": ("i1e",),
           "j0": ("j0",), "j1": ("j1",)}
_FOUND = {}


def address(name):
    """Address of a library function by the name that programs use."""
    found = _FOUND.get(name)
    if found is None:
        found = _FOUND[name] = _special(name) if name in SPECIAL else _helper(name)
    return found


def _special(name):
    for symbol in SPECIAL[name]:
        try:
            return numba.extending.get_cython_function_address("scipy.special.cython_special", symbol)
        except ValueError:
            continue
    raise errors.KernelError(f"scipy.special.cython_special has none of {', '.join(SPECIAL[name])}")


def _helper(name):
    from nscan.cpu import helpers
    return helpers.address(name)


def lapack_address(name, k):
    """Address of one of the LAPACK routines of a helper."""
    from nscan.cpu import helpers
    return helpers.lapack_addresses(name)[k]
