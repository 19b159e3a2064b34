"""The rows, by family. Importing this package fills `nscan.primitive.TABLE`."""

from nscan.elementwise import FORMULAS
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

parts.install_formulas(FORMULAS)
