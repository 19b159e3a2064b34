"""What kind of work an equation is: elementwise, a product, a write, a library call; what it reads, what it costs."""

import dataclasses

import numpy as np

from nscan.plan.axes import factor_pairs
from nscan.plan.small import region_shape
from nscan.tape import Lit, Var


@dataclasses.dataclass(eq=False)
class Statement:
    """An equation to be walked.

    Attributes
    ----------
    eqn : Eqn
    v : Var
        Its (first) output.
    kind : str
        map, reduce, scalar, or the name of an emitter of `EMITTERS`.
    kept, reduced : tuple of AxisClass
        Looped axes of the nest, in the order of the axes of what is walked.
    soft : bool
        Stored only if a statement outside of its nest reads it.
    into : Place or None
        Where the result is added to what is there already (a term of a sum over steps).
    overlaps : bool
        Whether an indexed write reads, for an element, other elements of what it overwrites.
    """

    eqn: object
    v: object
    kind: str
    kept: tuple = ()
    reduced: tuple = ()
    soft: bool = False
    into: object = None
    overlaps: bool = False
    reads: dict = dataclasses.field(default_factory=dict)
    after: set = dataclasses.field(default_factory=set)

    @property
    def domain(self):
        """What statements of one nest have in common."""
        return self.kind == "scalar", self.kept, self.reduced


def split_sums(eqns, sums):
    """Take the equations that add to sums out of a list: (other equations, terms).

    A term is (Var or Lit, Place), or (Eqn, Place) for an indexed addition. ``total = (acc + f) + g`` has the terms f
    and g.
    """
    makers = {q.outputs[0]: q for q in eqns if q.row.name in ("add", "index_add")}
    terms, gone = [], set()
    for out, (acc, place) in sums.items():
        found = []
        while out is not acc:
            q = makers.get(out)
            assert q is not None, "a sum that is not made by additions"
            gone.add(q)
            first = q.row.name == "index_add" or _leads_to(q.inputs[0], acc, makers)
            found.append((q if q.row.name == "index_add" else q.inputs[1 if first else 0], place))
            out = q.inputs[0 if first else 1]
        terms += reversed(found)
    return [q for q in eqns if q not in gone], terms


def _leads_to(v, acc, makers):
    """Whether a value is the accumulator plus something."""
    while v is not acc:
        q = makers.get(v)
        if q is None:
            return False
        v = q.inputs[0]
    return True


def sources(q):
    """Everything an equation reads: its inputs, run-time sizes, what tapes inside it capture are inputs too."""
    out = [x for x in q.inputs if type(x) is Var]
    for v in (*q.inputs, *q.outputs):
        out += [d for d in v.shape if type(d) is Var and d not in q.outputs]
    return out


ALIGNED = {"broadcast_to", "fill", "concatenate", "contract", "reshape"}


def is_library(e, q):
    """Whether an equation is a call of a library routine."""
    return q.row.kind == "linalg" and not _is_small(e, q)


def same_region(read, write):
    """Whether a read selects, element by element, what a write stores; a gather may select an element twice."""
    spec = read.params["spec"]
    if spec != write.params["spec"] or any(entry[0] == "arr" and read.inputs[1 + entry[1]].shape for entry in spec.entries):
        return False
    pairs = zip(read.inputs[1:], write.inputs[2:])
    return len(read.inputs) == len(write.inputs) - 1 and all(a is b or type(a) is type(b) is Lit and a.value == b.value for a, b in pairs)


def is_aligned(e, q):
    """Whether an equation reads its operands only at its own point, along looped axes."""
    name, kind = q.row.name, q.row.kind
    if kind in ("pointwise", "size", "linalg", "reduction", "running") or name in ALIGNED:
        return True
    if name == "index":
        return all(entry[0] in ("slice", "at", "new") and (entry[0] != "slice" or entry[3] == 1) for entry in q.params["spec"].entries)
    return False


def special_kind(e, q):
    """Name of the emitter of an equation that is no elementwise walk, or None."""
    name, kind = q.row.name, q.row.kind
    v = q.outputs[0]
    if name in ("index_update", "index_add"):
        return None if _writes_scalars(e, q) else "write"
    if name == "concatenate":
        return None if e.axes.get(v)[q.params["axis"]].unrolled else "concatenate"
    if name == "contract":
        sizes = dict(zip(q.params["la"], e.axes.get(q.inputs[0]) if type(q.inputs[0]) is Var else ()))
        summed = [k for k in q.params["la"] if k not in q.params["lo"]]
        return "dot" if q in e.outers or any(not sizes[k].unrolled for k in summed if k in sizes) else None
    if kind == "running":
        return None if e.axes.get(v)[q.params["axis"]].unrolled else "running"
    if kind == "order" and name != "searchsorted":
        return "sort"
    if is_library(e, q):
        return "library"
    if name == "reshape" and _needs_memory(e, q):
        return "reshape"
    return None


def _is_small(e, q):
    if q.row.name not in ("solve", "inv", "det", "slogdet", "cholesky"):
        return False
    return all(c.unrolled for x in q.inputs if type(x) is Var for c in e.axes.get(x)[-2:])


def _writes_scalars(e, q):
    x = q.inputs[0]
    spec = q.params["spec"]
    classes = e.axes.get(q.outputs[0])
    if any(not c.unrolled for c in classes) or any(entry[0] in ("dyn",) for entry in spec.entries):
        return False
    shape = region_shape(spec, q.outputs[0] if type(x) is not Var else x, q.inputs[2:])
    return all(type(d) is int for d in shape) and int(np.prod(shape, dtype=int)) <= 64


def _needs_memory(e, q):
    """A reshape that merges or splits looped axes is free in memory and costs divisions otherwise."""
    x, y = q.inputs[0], q.outputs[0]
    if type(x) is not Var:
        return False
    cx, cy = e.axes.get(x), e.axes.get(y)
    for gx, gy in factor_pairs(x.shape, y.shape):
        if len(gx) == 1 and len(gy) == 1 and cx[gx[0]].unrolled == cy[gy[0]].unrolled:
            continue
        if any(not cx[k].unrolled for k in gx) or any(not cy[k].unrolled for k in gy):
            return True
    return False


def vector_width(eqns, vs):
    """Lanes that run side by side: 16 for 4-byte types, 8 for wider ones, 1 where lanes cannot run together."""
    wide = False
    for q in eqns:
        for x in (*q.inputs, *q.outputs):
            if x.dtype.itemsize >= 8 and (type(x) is Var and x.shape):
                wide = True
        if q.row.name in ("argmax", "argmin") or q.row.name == "prod" and q.outputs[0].dtype.kind == "c":
            return 1
    for v in vs:
        wide = wide or v.dtype.itemsize >= 8
    return 8 if wide else 16
