"""Elementary functions."""
from . import math_error, math_power, math_exp, math_log, math_trig
from .math_core import Arithmetic
from .math_libm import call_libm

_E={}
FUNCTIONS={}
LIBM={'gamma':1}
for n in ("exp","exp2","expm1","sigmoid","tanh","sinh","cosh"):
    _E[n]=getattr(math_exp,n); FUNCTIONS[n]=1
for n in ("log","log2","log10","log1p","softplus","log_sigmoid","asinh","acosh","atanh"):
    _E[n]=getattr(math_log,n); FUNCTIONS[n]=1
for n in ("sin","cos","tan","asin","acos","atan","atan2"):
    _E[n]=getattr(math_trig,n); FUNCTIONS[n]=1
FUNCTIONS['atan2']=2
for n in ("erf","erfc"):
    _E[n]=getattr(math_error,n); FUNCTIONS[n]=1
for n in ("pow","cbrt","hypot"):
    _E[n]=getattr(math_power,n); FUNCTIONS[n]=1
FUNCTIONS['pow']=FUNCTIONS['hypot']=2
def emit(builder, name, *args, fma=True):
    if name in LIBM: return call_libm(builder,'tgamma',*args)
    return _E[name](Arithmetic(builder,args[0].type,fma),*args)
