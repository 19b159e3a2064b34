"""The rows, by family. Importing this package fills `nscan.primitive.TABLE`."""

from nscan.ops import contract, index, linalg, loop, methods, pointwise, reduction, shape, sort, ufunc_methods  # noqa: F401
from nscan.primitive import FORMULAS

pointwise.install_formulas(FORMULAS)
