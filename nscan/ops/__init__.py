"""The rows, by family. Importing this package fills `nscan.primitive.TABLE`."""

from nscan.ops import (  # noqa: F401
    contract,
    draw,
    index,
    join,
    linalg,
    loop,
    methods,
    more,
    norm,
    parts,
    pointwise,
    reduction,
    running,
    shape,
    sort,
    take,
    ufunc_methods,
)
from nscan.primitive import FORMULAS

parts.install_formulas(FORMULAS)
