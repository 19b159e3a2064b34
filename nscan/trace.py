"""Traces: three ways to fill a tape, and `bind`, which applies a row to whatever its inputs are.

- `StepTrace`: arrays without values (inside a step, inside a compiled function);
- `ValueTrace`: arrays with values, for ``vjp`` and ``grad`` outside a step; the tape is kept for the
  backward pass;
- `TangentTrace`: arrays with value and tangent, for ``jvp``; no tape at all.

Traces nest; each has a level. `bind` looks for the innermost trace among the inputs: what belongs to outer
traces, and real arrays, are constants there. A value of level n may itself be a traced array of a lower
level: that is how derivatives nest.
"""


import numpy as np

from nscan import buffers, errors
from nscan.content import Content
from nscan.optimise import optimise
from nscan.places import is_literal, user_place
from nscan.primitive import _BIND, TABLE, Point, repeat_to, same_shape, shape_text
from nscan.state import HOOKS, STATE, rules
from nscan.tape import RESIDUAL, Eqn, Lit, Output, Tape, Var, locate, operand_key, params_key, remember, shape_key

SPECIAL = frozenset((0, 1, -1, 2, 0.5))
KINDS = "biufc"
REFUSED = {"f": (2, 16), "c": (32,)}


class Traced:
    """Base of traced arrays: what `bind` needs to know (`nscan.array.TracedArray` adds NumPy's behaviour).

    Attributes
    ----------
    home : Trace
        The trace it belongs to.
    node : Var or None
        Its value on the tape of the trace.
    value, tangent : array, traced array of a lower level, or None
    shape, dtype
    """

    __slots__ = ("home", "node", "value", "tangent", "shape", "dtype", "base", "recipe", "version",
                 "base_version", "scalar", "owner", "weak", "__weakref__")

    def __init__(self, trace, var, shape, dtype, value=None, tangent=None, scalar=None):
        self.home = trace
        self.node = var
        self.value = value
        self.tangent = tangent
        self.shape = shape
        self.dtype = dtype
        self.base = None
        self.recipe = None
        self.version = 0
        self.base_version = 0
        self.scalar = not shape if scalar is None else scalar
        self.owner = None
        self.weak = None

    def become(self, other):
        """Take over the content of another traced array of the same trace (an in-place write)."""
        self.node, self.value, self.tangent = other.node, other.value, other.tangent
        self.version += 1


# `nscan.array` replaces this by TracedArray: the class that users see.
CLASS = [Traced]


def make(trace, var, shape, dtype, value=None, tangent=None, scalar=None):
    """Make a traced array of the class that users see."""
    return CLASS[0](trace, var, shape, dtype, value, tangent, scalar)


class Trace:
    """Common part: a level, a flag that says the trace is over, constants met so far."""

    symbolic = False

    def elementwise(self, row, inputs):
        """Apply an elementwise row on the short way; None where there is none (see `StepTrace`)."""

    def __init__(self, name=""):
        self.level = STATE.stack[-1].level + 1 if STATE.stack else 1
        self.closed = False
        self.name = name

    def __enter__(self):
        STATE.stack.append(self)
        return self

    def __exit__(self, *exc):
        STATE.stack.remove(self)
        self.closed = True


class StepTrace(Trace):
    """A tape filled without values.

    Attributes
    ----------
    inputs : list of Var
        The declared inputs.
    captured : list of (outer value, Var)
        Arrays, numbers and traced arrays of outer traces that the step used without being given them.
    originals : list of (outer value, Content or None)
        The same as the step saw them, and what arrays held then.
    weak_counts : bool
        Whether some dtype follows from states that have none of their own yet (`nscan.step`).
    """

    symbolic = True

    def __init__(self, name=""):
        super().__init__(name)
        self.count = 0
        self.inputs = []
        self.eqns = []
        self.record = []
        self.weak_counts = False
        self.captured = []
        self.originals = []
        self._lifted = {}
        self._handles = {}

    def new_var(self, shape, dtype):
        """Make a Var with the next number."""
        var = Var(shape, dtype, self.count)
        self.count += 1
        return var

    def new_input(self, shape, dtype, scalar=None, owner=None):
        """Declare an input and return it as a traced array."""
        var = self.new_var(tuple(self._dim(d) for d in shape), dtype)
        self.inputs.append(var)
        array = self.handle(var, scalar)
        array.owner = owner
        return array

    def _dim(self, d):
        return d if type(d) is int else self.var_of(d)

    def handle(self, var, scalar=None):
        """Return the traced array of a Var."""
        shape = var.shape
        for d in shape:
            if type(d) is not int:
                shape = tuple(d if type(d) is int else self.size_handle(d) for d in shape)
                break
        return make(self, var, shape, var.dtype, scalar=scalar)

    def size_handle(self, var):
        """Return the one traced array that stands for a size (sizes are compared by identity)."""
        found = self._handles.get(var)
        if found is None:
            found = self._handles[var] = make(self, var, (), var.dtype)
        return found

    def process(self, row, inputs, params):
        """Append an equation."""
        operands = tuple([self.var_of(x) for x in inputs])
        outs = row.infer(*operands, **params)
        outputs = tuple([self.new_var(shape, dtype) for shape, dtype in outs])
        if row.kind == "loop":
            resolve_sizes(outputs)
        where = user_place()
        self.eqns.append(Eqn(row, operands, outputs, params, where))
        self.record += (row, where, params_key(params), *map(operand_key, operands))
        if row.outputs == 1:
            return self.handle(outputs[0])
        return tuple([self.handle(v) for v in outputs])

    def elementwise(self, row, inputs):
        """Append an elementwise equation on arrays of this trace and numbers whose types have been met before.

        Returns
        -------
        traced array, or None
            None where something has to be settled first: unknown types, casts, views, arrays of other traces.
        """
        types, operands, known = [row], [], CLASS[0]
        for x in inputs:
            kind = type(x)
            if kind is known:
                if x.home is not self:
                    return None
                if x.base is not None:
                    x.sync()
                operands.append(x.node)
                types += (x.dtype, x.shape, x.weak)
            else:
                operands.append(x)
                types.append(NUMBERS.get(kind))
        found = _ELEMENTWISE.get(tuple(types))
        if found is None or self.closed:
            return None
        shape, dtype, numbers, weak, weak_counts = found
        where = user_place(3)
        for k, convert in numbers:
            operands[k] = self._lift_number(convert(operands[k]), is_literal(operands[k], where))
        var = Var(shape, dtype, self.count)
        self.count += 1
        self.eqns.append(Eqn(row, tuple(operands), (var,), {}, where))
        self.record += (row, where, (), *[v.id if type(v) is Var else v.key for v in operands])
        out = known(self, var, shape, dtype)
        out.weak = weak
        self.weak_counts = self.weak_counts or weak_counts
        return out

    def learn(self, row, inputs, operands, out, weak_counts):
        """Remember the types of an elementwise equation for `elementwise`, if they need no cast and no care."""
        types, numbers = [row], []
        for k, (x, operand) in enumerate(zip(inputs, operands)):
            if isinstance(x, Traced):
                if x.home is not self or x is not operand:
                    return
                types += (x.dtype, x.shape, x.weak)
            else:
                token = NUMBERS.get(type(x))
                if token is None or token is int and operand.dtype.kind not in "fc" or token not in WEAK and token != operand.dtype:
                    return
                numbers.append((k, operand.dtype.type))
                types.append(token)
        if all(type(d) is int for d in out.shape):
            remember(_ELEMENTWISE, tuple(types), (out.shape, out.dtype, tuple(numbers), out.weak, weak_counts))

    def var_of(self, x):
        """Return the Var (or Lit) of anything that may be an operand."""
        if isinstance(x, Traced):
            if x.home is self:
                if x.base is not None:
                    x.sync()
                return x.node
        elif type(x) is Lit or type(x) is Var:
            return x
        return self.lift(x)

    def lift(self, x):
        """Make a constant of the tape from a real array, a number, or a traced array of an outer trace."""
        if isinstance(x, Traced):
            if x.home.closed:
                raise escaped(x)
            if x.base is not None:
                x.sync()
            key = (id(x), x.version)
        elif getattr(x, "dtype", None) is RESIDUAL:
            key = id(x)
        elif isinstance(x, np.ndarray) and x.ndim:
            if not any(x.strides) and x.size:
                return self._lift_uniform(x)
            key = id(x)
        else:
            return self._lift_number(x)
        found = self._lifted.get(key)
        if found is None or found[1] is not None and not found[1].holds(x):
            found = self._lifted[key] = self._capture(x)
        return found[0]

    def _capture(self, x):
        """Make an input of an outer value as it is now, for the step may write to it later: (Var, Content or None)."""
        var = self.new_var(tuple(self._dim(d) for d in x.shape), x.dtype)
        content = None
        if x.dtype is RESIDUAL:
            kept = x
        elif isinstance(x, Traced):
            kept = make(x.home, x.node, x.shape, x.dtype, x.value, x.tangent, x.scalar)
        else:
            check_array(x)
            content = Content(x) if x.flags.writeable else None
            kept = x if content is None or content.copy is None else content.copy
        self.captured.append((kept, var))
        self.originals.append((x, content))
        return var, content

    def _lift_uniform(self, x):
        scalar = self._lift_number(x[(0,) * x.ndim])
        template = x.shape
        return self.var_of(self.process(TABLE["fill"], (scalar,), {"template": template}))

    def _lift_number(self, x, literal=False):
        x = x if isinstance(x, np.generic) else np.asarray(x)[()]
        dtype = x.dtype
        if type(x) not in NUMBERS:
            check_array(x)
        if STATE.rules or literal or x in SPECIAL or dtype.kind == "b":
            return Lit(x, dtype)
        var = Var((), dtype, self.count)
        self.count += 1
        self.captured.append((x, var))
        self.originals.append((x, None))
        return var

    def finish(self, outputs, stable=False):
        """Close the tape: its inputs are the declared ones, then the captured ones; simplified, once for each structure.

        Parameters
        ----------
        outputs : list
        stable : bool
            Whether formulas may be rewritten (`nscan.rewrites`): in a step of the user, not in what is derived from it.

        Returns
        -------
        tape : Tape
        captured : list
            The outer values of the captured inputs, in order.
        """
        outs = tuple([self.var_of(x) for x in outputs])
        for x, content in self.originals:
            if content is not None and content.copy is None and not content.holds(x):
                raise errors.TracedValueError(
                    f"an array of shape {x.shape} was written to after the step {self.name!r} had used it; the loop would see "
                    "the written values everywhere: make it a traced array first, z = ns.array(z), or a state"
                )
        inputs = (*self.inputs, *[v for _, v in self.captured])
        key = (tuple([(v.id, v.dtype, shape_key(v.shape)) for v in inputs]), tuple(self.record), tuple(map(operand_key, outs)),
               stable)
        tape = _TAPES.get(key)
        if tape is None:
            tape = remember(_TAPES, key, optimise(Tape(inputs, tuple(self.eqns), outs), stable), 1000)
        return tape, [x for x, _ in self.captured]


# Tapes by what was traced, places in the user's code included, so that what is derived from a tape is found by identity.
_TAPES = {}
# Shape, dtype, numbers to convert, and what is weak of an elementwise equation, by row and types of the operands.
_ELEMENTWISE = {}
# Python numbers take the dtype of their partner, NumPy's have their own.
WEAK = {int: int, float: float, complex: complex}
NUMBERS = {int: int, float: float, **{np.dtype(t).type: np.dtype(t) for t in ("f4", "f8", "i4", "i8")}}


def carries(x):
    """Tell whether a value may carry a derivative; others (integers, bools) leave traces with values as they are."""
    return x.dtype.kind in "fc"


class ValueTrace(Trace):
    """A tape whose values are computed at once, kept for a backward pass."""

    def __init__(self, name=""):
        super().__init__(name)
        self.count = 0
        self.inputs = []
        self.eqns = []
        self.values = {}
        self.active = set()
        self.given = {}

    def _var(self, value, shape, dtype):
        var = Var(shape, dtype, self.count)
        self.count += 1
        self.values[var] = value
        return var

    def new_input(self, value, scalar=None):
        """Declare an input with its value."""
        var = self._var(value, value.shape, value.dtype)
        self.inputs.append(var)
        self.active.add(var)
        return make(self, var, value.shape, value.dtype, value, scalar=scalar)

    def new_constant(self, value):
        """Make an array whose derivative is zero."""
        var = self._var(value, value.shape, value.dtype)
        return make(self, var, value.shape, value.dtype, value) if carries(value) else value

    def process(self, row, inputs, params):
        """Compute outputs one level down and append the equation."""
        shown = None
        if row.pair is not None:
            params, shown = row.pair(inputs, params, [self.is_active(x) for x in inputs])
        values = [self.value_of(x) for x in inputs]
        outs = bind(row, values, params)
        outs = outs if isinstance(outs, tuple) else (outs,)
        operands = tuple([self.var_of(x) for x in inputs])
        outputs = tuple([self._var(v, v.shape, v.dtype) for v in outs])
        self.eqns.append(Eqn(row, operands, outputs, params, user_place()))
        if (row.vjp is not None or row.why) and any(v in self.active for v in operands if type(v) is Var):
            self.active.update(v for v in outputs if v.dtype.kind in "fc")
        handles = [make(self, var, v.shape, v.dtype, v) if carries(v) else v for var, v in zip(outputs, outs)]
        return handles[0] if row.outputs == 1 else tuple(handles[:shown])

    def value_of(self, x):
        """Return the value of an operand one level down."""
        if isinstance(x, Traced) and x.home is self:
            if x.base is not None:
                x.sync()
            return x.value
        return x

    def var_of(self, x):
        """Return the Var of an operand; constants get one of their own."""
        if isinstance(x, Traced) and x.home is self:
            return x.node
        if type(x) is Lit:
            return x
        if isinstance(x, np.ndarray) and x.ndim and x.flags.writeable:
            return self._var_of_array(x)
        x = x if hasattr(x, "dtype") else np.asarray(x)
        return self._var(x, x.shape, x.dtype)

    def _var_of_array(self, x):
        """Keep what an array holds now, for the function may write to it before the backward pass reads it."""
        known = self.given.get(id(x))
        if known is None or not known[1].holds(x):
            content = Content(x)
            value = x if content.copy is None else content.copy
            known = self.given[id(x)] = x, content, self._var(value, x.shape, x.dtype)
        return known[2]

    def changed(self):
        """Tell whether a large array that the function used, and that was not copied, holds something else now."""
        return any(content.copy is None and not content.holds(x) for x, content, _ in self.given.values())

    def is_active(self, x):
        """Tell whether a derivative flows through an operand."""
        return isinstance(x, Traced) and x.home is self and x.node in self.active


class TangentTrace(Trace):
    """Values and tangents, side by side."""

    def new_constant(self, value):
        """Make an array whose derivative is zero."""
        return make(self, None, value.shape, value.dtype, value) if carries(value) else value

    def new_input(self, value, tangent, scalar=None):
        """Make an input with its value and tangent."""
        return make(self, None, value.shape, value.dtype, value, tangent, scalar)

    def process(self, row, inputs, params):
        """Compute values and tangents of the outputs."""
        values, tangents = [], []
        for x in inputs:
            mine = isinstance(x, Traced) and x.home is self
            if mine and x.base is not None:
                x.sync()
            values.append(x.value if mine else x)
            tangents.append(x.tangent if mine else None)
        if row.joint is not None and any(t is not None for t in tangents):
            outs, douts = row.joint(values, tangents, params)
        else:
            outs = bind(row, values, params)
            outs = outs if isinstance(outs, tuple) else (outs,)
            douts = tangents_of(row, values, outs, tangents, params)
        handles = [make(self, None, v.shape, v.dtype, v, t) if carries(v) else v for v, t in zip(outs, douts)]
        return handles[0] if row.outputs == 1 else tuple(handles)


def tangents_of(row, values, outs, tangents, params):
    """Apply the jvp rule of a row; None stands for a zero tangent."""
    if all(t is None for t in tangents) or row.jvp is None and not row.why:
        return (None,) * len(outs)
    if row.jvp is None:
        raise errors.GradientTypeError(f"no derivative passes through {row.name}: {row.why}")
    at = Point(values, outs, lambda x: x.value if type(x) is Lit else x, [t is not None for t in tangents])
    with rules():
        return tuple([t if t is None else _fitted(t, out) for t, out in zip(row.jvp(tangents, at, **params), outs)])


def _fitted(tangent, out):
    """Give a tangent the shape and dtype of its output: operands without a tangent may have the larger ones."""
    if not same_shape(tangent.shape, out.shape):
        tangent = repeat_to(tangent, out.shape)
    return tangent if tangent.dtype == out.dtype else tangent.astype(out.dtype)


def resolve_sizes(outputs):
    """Replace sizes that are other outputs of the equation by those."""
    for v in outputs:
        if any(type(d) is Output for d in v.shape):
            v.shape = tuple(outputs[d.index] if type(d) is Output else d for d in v.shape)


def bind(row, inputs, params):
    """Apply a row to operands of any kind: real arrays, numbers, traced arrays of any level."""
    top = None
    for x in inputs:
        if isinstance(x, Traced):
            trace = x.home
            if top is None or trace.level > top.level:
                top = trace
    if top is None:
        return ground(row, inputs, params)
    if top.closed:
        raise escaped(next(x for x in inputs if isinstance(x, Traced) and x.home is top))
    return top.process(row, inputs, params)


def ground(row, inputs, params):
    """Apply a row to real arrays: its eager rule, or for loops the runner that `api` has handed in."""
    arrays = [x.value if type(x) is Lit else x for x in inputs]
    if row.kind == "loop":
        return HOOKS["runner"](row, arrays, params)
    with np.errstate(all="ignore"):
        out = buffers.apply(row.eager, *arrays) if type(row.eager) is np.ufunc else row.eager(*arrays, **params)
    return out if row.outputs == 1 or isinstance(out, tuple) else (out,)


_BIND.append(bind)


def current_step():
    """Return the innermost trace without values, or None outside of steps."""
    for trace in reversed(STATE.stack):
        if trace.symbolic:
            return trace
    return None


def escaped(x):
    """Build the error for a traced array that is used after its trace has ended."""
    what = f"a traced array of shape {shape_text(x.shape)}"
    where = f" {x.home.name!r}" if x.home.name else ""
    if not x.home.symbolic:
        return errors.EscapedError(f"{what} left the function{where} that was differentiated; what it returns has values: return "
                                   "the array too (see has_aux) instead of keeping it in a list, an attribute or a global")
    place = next((locate(e.where) for e in x.home.eqns if x.node in e.outputs), None)
    made = "it was an argument of the step" if place is None else f"it was made at {place}" + f": {place.text}" * bool(place.text)
    return errors.EscapedError(
        f"{what} left the step{where} ({made}); outside it stands for no value. Return it as an output of the step (its "
        "rows come back stacked) instead of keeping it in a list, an attribute or a global")


def check_array(x, name="an array"):
    """Refuse arrays that kernels cannot read, by name."""
    if isinstance(x, np.ma.MaskedArray):
        raise errors.DtypeError(f"{name} is a masked array; its mask would be lost: pass x.filled(value)")
    check_dtype(x.dtype, f"{name} has")
    return x


def check_dtype(dtype, what):
    """Refuse dtypes that kernels do not know; `what` begins the message."""
    if dtype.kind not in KINDS or dtype.itemsize in REFUSED.get(dtype.kind, ()):
        raise errors.DtypeError(f"{what} dtype {dtype}; bool, integers, float32, float64, complex64 and complex128 are known")
    if not dtype.isnative:
        raise errors.DtypeError(f"{what} dtype {dtype.str!r}, whose bytes are in the order of another kind of host; convert it: "
                                f"x.astype({dtype.newbyteorder('=').name!r})")
