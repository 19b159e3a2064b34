"""Addresses of library functions: SciPy's special functions, LAPACK helpers, sorting."""

import numba.extending

from nscan import errors

# Fused types of scipy.special.cython_special: the double variant of each function.
SPECIAL = {"psi": ("__pyx_fuse_1psi",), "erfinv": ("__pyx_fuse_0erfinv", "erfinv"), "erfcx": ("__pyx_fuse_1erfcx",),
           "log_ndtr": ("__pyx_fuse_1log_ndtr",), "ndtri": ("ndtri",), "i0": ("i0",), "i1": ("i1",), "i0e": ("i0e",), "i1e": ("i1e",),
           "j0": ("j0",), "j1": ("j1",)}
# Those of complex numbers: each takes and returns pairs of doubles, in registers.
COMPLEX = "__pyx_t_double_complex"
_FOUND = {}


def address(name):
    """Address of a library function by the name that programs use."""
    found = _FOUND.get(name)
    if found is None:
        make = _special if name in SPECIAL else _complex if name.startswith("complex_") else _helper
        found = _FOUND[name] = make(name)
    return found


def _special(name):
    for symbol in SPECIAL[name]:
        try:
            return numba.extending.get_cython_function_address("scipy.special.cython_special", symbol)
        except ValueError:
            continue
    raise errors.KernelError(f"scipy.special.cython_special has none of {', '.join(SPECIAL[name])}")


def _complex(name):
    from scipy.special import cython_special
    name = name.removeprefix("complex_")
    for symbol in (f"__pyx_fuse_0{name}", f"__pyx_fuse_1{name}"):
        if COMPLEX in str(cython_special.__pyx_capi__.get(symbol)):
            return numba.extending.get_cython_function_address("scipy.special.cython_special", symbol)
    raise errors.KernelError(f"scipy.special.cython_special has no {name} of complex numbers")


def _helper(name):
    from nscan.cpu import helpers
    return helpers.address(name)


def lapack_address(name, k):
    """Address of one of the LAPACK routines of a helper."""
    from nscan.cpu import helpers
    return helpers.lapack_addresses(name)[k]
