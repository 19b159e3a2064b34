"""Calls of the C library's functions, lane by lane."""

from llvmlite import ir

from .math_core import Arithmetic, get_function


def call_libm(builder, symbol, *args):
    """Call a function of libm on scalars, or on each lane of vectors.

    Parameters
    ----------
    builder : llvmlite.ir.IRBuilder
        Builder positioned where the call has to go.
    symbol : str
        Name of the function for float64; the one for float32 has an ``f`` appended.
    *args : llvmlite.ir.Value
        Arguments of one type.
    """
    ops = Arithmetic(builder, args[0].type, False)
    symbol = ops.choose(f"{symbol}f", symbol)
    kind = ir.FunctionType(ops.scalar_type, [ops.scalar_type] * len(args))
    function = get_function(builder.module, symbol, kind)
    if ops.lanes:
        function = define_lanes_function(ops, function)
    return builder.call(function, args)


def define_lanes_function(ops, scalar_function):
    """Return the out-of-line function that applies a scalar function to each lane of vectors."""
    name = f"nscan.lanes.{scalar_function.name}.v{ops.lanes}"
    count = len(scalar_function.args)
    kind = ir.FunctionType(ops.type, [ops.type] * count)
    function = get_function(ops.builder.module, name, kind)
    if not function.blocks:
        function.linkage = "internal"
        function.attributes.add("noinline")
        function.attributes.add("cold")
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        result = ir.Constant(ops.type, ir.Undefined)
        for lane in range(ops.lanes):
            index = ir.Constant(ir.IntType(32), lane)
            scalars = [builder.extract_element(argument, index) for argument in function.args]
            result = builder.insert_element(result, builder.call(scalar_function, scalars), index)
        builder.ret(result)
    return function


def replace_by_libm(ops, condition, result, symbol, *args):
    """Replace the lanes of a result where `condition` holds by libm's result.

    The call sits in a branch of its own, which is taken if the condition holds in any lane. The builder of
    `ops` ends up in a new basic block.
    """
    builder = ops.builder
    before = builder.block
    with builder.if_then(ops.any_lane(condition), likely=False):
        corrected = ops.select(condition, call_libm(builder, symbol, *args), result)
        inside = builder.block
    merged = builder.phi(ops.type)
    merged.add_incoming(result, before)
    merged.add_incoming(corrected, inside)
    return merged
