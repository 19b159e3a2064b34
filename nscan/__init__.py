"""nscan: NumPy loops as compiled kernels, with exact derivatives."""

from importlib.metadata import PackageNotFoundError, version

from nscan import errors, random
from nscan.api import array, foldl, foldr, loop, map, reduce, scan
from nscan.config import config
from nscan.control import cond, ifelse, while_loop
from nscan.edge import until
from nscan.explain import explain
from nscan.grad.check import check_grads
from nscan.grad.custom import custom_jvp, custom_vjp, grad_clip, grad_scale
from nscan.grad.higher import Lop, Rop, consider_constant, grad, hvp, jvp, stop_gradient, value_and_grad, vjp
from nscan.grad.jacobian import gauss_newton_vp, hessian, jacobian
from nscan.profile import profile
from nscan.recurrence import accumulate, associative_scan, linear_recurrence
from nscan.special import log_softmax, logsumexp, one_hot, sigmoid, softmax, softplus

try:
    __version__ = version("nscan")
except PackageNotFoundError:
    __version__ = "0.0.0"

__all__ = [
    "Lop", "Rop", "accumulate", "array", "associative_scan", "check_grads", "cond", "config", "consider_constant",
    "custom_jvp", "custom_vjp", "errors", "explain", "foldl", "foldr", "gauss_newton_vp", "grad", "grad_clip",
    "grad_scale", "hessian", "hvp", "ifelse", "jacobian", "jvp", "linear_recurrence", "log_softmax", "logsumexp",
    "loop", "map", "one_hot", "profile", "random", "reduce", "scan", "sigmoid", "softmax", "softplus", "stop_gradient",
    "until", "value_and_grad", "vjp", "while_loop",
]
