"""Sphinx extension: parts of pages that are made from the library itself, so that they are never stale.

`write_pages` writes ``docs/_generated/*.rst``, which pages of the documentation include: the errors with
their real messages, what traced arrays support, formulas that are rewritten, the modules with their imports, the stages of a small loop.
"""

import ast
import contextlib
import dataclasses
import inspect
import linecache
import pathlib
import shutil
import textwrap
import warnings

import ladder
import numpy as np
from error_examples import EXAMPLES

import nscan as ns
from nscan.array import TracedArray
from nscan.grad.loop import adjoint_of
from nscan.ops import ufunc_methods
from nscan.primitive import TABLE, Row
from nscan.rewrites import PATTERNS
from nscan.trace import HOOKS, Traced

FILE = "example.py"
NO_EXAMPLE = ("NscanError", "KernelError", "StateTypeError", "MissingPackageError")


# ------------------------------------------------------------------------------------------------- helpers
@contextlib.contextmanager
def compiled():
    """Run the examples of the pages compiled, whatever the setting is."""
    assigned = dict(ns.config._assigned)
    ns.config.mode = "compiled"
    try:
        yield
    finally:
        ns.config._assigned.clear()
        ns.config._assigned.update(assigned)


def title(text, line="-"):
    """Return a heading."""
    return f"{text}\n{line * len(text)}\n\n"


def block(text, language):
    """Return a block of code."""
    return f".. code-block:: {language}\n\n{textwrap.indent(text.rstrip(), '   ')}\n\n"


def table(header, rows, widths):
    """Return a list-table."""
    lines = [".. list-table::", "   :header-rows: 1", f"   :widths: {widths}", ""]
    for row in (header, *rows):
        lines += [("   * - " if k == 0 else "     - ") + (cell or "\\") for k, cell in enumerate(row)]
    return "\n".join(lines) + "\n\n"


def listed(names, prefix=""):
    """Return names as literals, separated by commas."""
    return ", ".join(f"``{prefix}{name}``" for name in names)


# -------------------------------------------------------------------------------------------------- errors
def error_classes():
    """Return the exception classes in the order of the source."""
    return [kind for kind in vars(ns.errors).values()
            if isinstance(kind, type) and kind.__module__ == ns.errors.__name__]


def run_example(code):
    """Run code that must fail and return the error."""
    code = code.strip() + "\n"
    linecache.cache[FILE] = (len(code), None, code.splitlines(True), FILE)
    try:
        exec(compile(code, FILE, "exec"), {"np": np, "ns": ns})
    except ns.errors.NscanError as error:
        return error
    finally:
        del linecache.cache[FILE]
    raise AssertionError(f"no error from:\n{code}")


def full_name(kind):
    """Name of a class as a reader would import it."""
    module = {"builtins": "", "numpy.linalg": "numpy.linalg.", ns.errors.__name__: ""}[kind.__module__]
    return module + kind.__name__


def error_text(kind):
    """Return a class of errors: bases, docstring, example, message."""
    name = kind.__name__
    bases = ", ".join(f"`{full_name(base)}`" for base in kind.__bases__)
    out = f"Bases: {bases}\n\n{inspect.cleandoc(kind.__doc__)}\n\n"
    if name in EXAMPLES:
        error = run_example(EXAMPLES[name])
        if type(error) is not kind:
            raise AssertionError(f"the example of {name} raises {type(error).__name__}: {error}")
        text = textwrap.fill(f"{name}: {error}", 96, subsequent_indent="    ", break_on_hyphens=False)
        out += "For example\n\n" + block(EXAMPLES[name].strip(), "python")
        out += "raises\n\n" + block(text, "text")
    return out


def errors_page():
    """Return all classes of errors."""
    parts = [title(kind.__name__) + f".. py:exception:: {kind.__name__}\n\n"
             + textwrap.indent(error_text(kind), "   ") for kind in error_classes()]
    return ".. py:module:: nscan.errors\n\n" + "".join(parts)


# ----------------------------------------------------------------------------------------------- supported
def derivative(row):
    """Say which derivatives a row has."""
    if row.jvp is None and row.vjp is None and row.joint is None:
        return f"none: {row.why}" if row.why else "zero"
    rules = (("forward", row.jvp or row.joint), ("reverse", row.vjp))
    parts = [" and ".join(name for name, rule in rules if rule)]
    if len(row.partials) > 1:
        parts += [f"zero in input {k}" for k, p in enumerate(row.partials) if p is None]
    parts += [f"none in input {k}: {row.why}" for k, p in enumerate(row.partials) if p == "?"]
    if row.asymmetric:
        parts.append("the reverse one is not the transpose of the forward one, by intention")
    return "; ".join(parts)


def numpy_names():
    """Return the public names of each NumPy function: function to list of names."""
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for prefix, module in (("np.", np), ("np.linalg.", np.linalg)):
            for name in dir(module):
                value = getattr(module, name, None)
                if name[0] != "_" and callable(value) and not isinstance(value, type):
                    found.setdefault(value, []).append(prefix + name)
    return found


def fronts():
    """Return (names, front) of each supported NumPy function, in alphabetical order."""
    names, out = numpy_names(), []
    for function, front in TABLE.fronts.items():
        known = names.get(function, [])
        own = [n for n in known if n.rpartition(".")[2] == function.__name__]
        if known:
            out.append((own + [n for n in known if n not in own], front))
    return sorted(out, key=lambda item: item[0][0].lower())


def is_refused(front):
    """Tell whether a function stands in the table only to be refused with advice."""
    return not isinstance(front, Row) and (front.__doc__ or "").startswith("Refuse")


def front_line(names, front):
    """Return a line of the table of functions: names, derivative."""
    shown = f"{listed(names[:1])} ({listed(names[1:])})" if names[1:] else listed(names)
    own, same = front.__name__.rstrip("_") if not isinstance(front, Row) else "", names[0].rpartition(".")[2]
    row = front if isinstance(front, Row) else TABLE.rows.get(own) or TABLE.rows.get(same)
    return shown, derivative(row) if row is not None else "composed"


def functions_part():
    """Return the tables of NumPy and SciPy functions."""
    found, head = fronts(), ("function", "derivative")
    lines = [front_line(names, front) for names, front in found if not is_refused(front)]
    refused = listed([names[0] for names, front in found if is_refused(front)])
    special = [(f"``{name}``", derivative(row)) for name, row in sorted(TABLE.scipy.items())]
    return (title("NumPy functions") + table(head, lines, "50 50")
            + (f"Refused, with advice: {refused}.\n\n" if refused else "")
            + title("Methods of ufuncs")
            + f"``reduce`` of {listed(ufunc_methods.REDUCE, 'np.')}; "
            + f"``accumulate`` of {listed(ufunc_methods.ACCUMULATE, 'np.')}; "
            + "``outer`` of every ufunc of two inputs; ``at`` of ``np.add`` and ``np.subtract``.\n\n"
            + title("Ufuncs of ``scipy.special``") + table(head, special, "50 50"))


def methods_part():
    """Return the methods and attributes of traced arrays."""
    hidden = {*Traced.__slots__} - {"shape", "dtype"}
    public = [n for n in dir(np.ndarray) if n[0] != "_" and hasattr(TracedArray, n) and n not in hidden]
    refused = [n for n in public if (getattr(TracedArray, n).__doc__ or "").startswith(("Raise", "Refuse"))]
    attributes = [n for n in public if not callable(getattr(TracedArray, n))]
    methods = [n for n in public if n not in attributes and n not in refused]
    return (title("Attributes and methods of traced arrays")
            + f"Attributes: {listed(attributes)}.\n\nMethods: {listed(methods)}.\n\n"
            + f"Refused, with advice: {listed(refused)}.\n\n")


def rows_part():
    """Return the table of all rows."""
    stands = {}
    for names, front in fronts():
        if isinstance(front, Row):
            stands.setdefault(front.name, []).extend(names)
    for name, row in TABLE.scipy.items():
        stands.setdefault(row.name, []).append(f"scipy.special.{name}")
    lines = [(f"``{row.name}``", row.kind, listed(stands.get(row.name, ())), derivative(row))
             for row in TABLE]
    return title("Rows") + table(("row", "kind", "is the function", "derivative"), lines, "18 12 35 35")


def supported_page():
    """Return everything that traced arrays support."""
    return functions_part() + methods_part() + rows_part()


# ------------------------------------------------------------------------------------------------- modules
def first_line(path):
    """Return the first line of a module's docstring, without its full stop."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return text.splitlines()[0].rstrip(".") if text else ""


def modules_page():
    """Return a table of the modules for each rung of the ladder, the lowest first."""
    report, paths = ladder.report(), ladder.modules(pathlib.Path(ns.__file__).parent)
    head, out = ("module", "what it is", "imports", "imports in functions"), []
    names = lambda found: listed(name or "nscan" for name in sorted(found))  # noqa: E731
    for k, (name, _, what) in enumerate(ladder.RUNGS):
        lines = [(names([module]), first_line(paths[module]), names(outer), names(inner - outer))
                 for module, (rung, outer, inner) in report.items() if rung == k]
        out.append(f"**{k + 1}. {name}** -- {what}\n\n" + table(head, lines, "16 34 30 20"))
    return "".join(out)


# -------------------------------------------------------------------------------------------------- stages
def watch(function):
    """Call a function and return the loop rows that run meanwhile, as pairs (row, parameters)."""
    seen, runner = [], HOOKS["runner"]

    def spy(row, values, params):
        seen.append((row, params))
        return runner(row, values, params)

    HOOKS["runner"] = spy
    try:
        with compiled():
            function()
    finally:
        HOOKS["runner"] = runner
    return seen


def program_text(statements, depth=0):
    """Write the statements of a loop program, one a line."""
    return "\n".join("    " * depth + line for s in statements for line in statement_lines(s))


def statement_lines(s):
    """Write one statement."""
    kind, *rest = s
    if kind == "let":
        v, op, dtype, args = rest
        return [f"v{v} = {op}.{dtype} {' '.join(map(operand, args))}"]
    if kind == "load":
        v, dtype, slot, address = rest
        return [f"v{v} = load.{dtype} {slot_text(slot)} at {operand(address)}"]
    if kind == "store":
        dtype, slot, address, value = rest
        return [f"store.{dtype} {slot_text(slot)} at {operand(address)}: {operand(value)}"]
    if kind == "range":
        i, lo, hi, width, carries, body, yields = rest
        kept = [f", v{v} = {operand(first)} then {operand(new)}, at last v{last}"
                for (v, first, _, last), new in zip(carries, yields, strict=True)]
        head = f"for v{i} from {operand(lo)} to {operand(hi)} by {width}{''.join(kept)}:"
        return [head, *program_text(body, 1).splitlines()]
    return [" ".join(map(str, s))]


def operand(part):
    """Write an operand: a value as v3, a constant as it is."""
    return str(part[2]) if isinstance(part, tuple) else f"v{part}"


def slot_text(slot):
    """Write a slot of memory: an array that goes in or out, or a piece of workspace."""
    return "(" + " ".join(map(str, slot)) + ")"


def stages():
    """Return what a small loop and its gradient become: name of the stage to text."""
    from nscan.cpu.run import kernel_of

    def unit(x, h, w):
        return np.tanh(w * h + x)

    def last(w):
        return ns.scan(unit, np.ones(4), 0.0, w)[-1]

    loop = watch(lambda: last(0.9))[0][1]["loop"]
    params = next(params for row, params in watch(lambda: ns.grad(last)(0.9)) if row.name == "loop_adjoint")
    adjoint = adjoint_of(params["loop"], params["active"], params["with_ct"][:params["loop"].rows])
    return {"tape": block(f"{loop.brief()}\n{loop.step}", "text"),
            "program": block(program_text(kernel_of(loop).program.block), "text"),
            "forward": block(f"{adjoint.forward.brief()}\n{adjoint.forward.step}", "text"),
            "backward": block(f"{adjoint.backward.brief()}\n{adjoint.backward.step}", "text")}


# ------------------------------------------------------------------------------------------------ examples
@dataclasses.dataclass
class Examples:
    """The gallery's copy of the examples: its folder, and the names of those that are run."""

    folder: pathlib.Path
    quick: list


def gather_examples(source, folder):
    """Copy the examples for the gallery and write its entry in the contents; None without examples."""
    found = sorted(source.glob("plot_*.py"))
    entry = ".. toctree::\n   :caption: Examples\n   :maxdepth: 1\n\n   gallery/index\n"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gallery.rst").write_text(entry if found else "")
    if not found:
        return None
    target = folder / "examples"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    if not any(target.glob("GALLERY_HEADER.*")) and not any(target.glob("README.*")):
        (target / "GALLERY_HEADER.rst").write_text("Examples\n========\n")
    return Examples(target, [p.name for p in found if "# docs: do not run" not in p.read_text()])


# ------------------------------------------------------------------------------------------------ formulas
def formulas_page():
    """Write the table of formulas that are computed in another way."""
    rows = [f"   * - ``{before}``\n     - ``{after}``" for before, after in PATTERNS]
    return "\n".join([".. list-table::", "   :header-rows: 1", "", "   * - written", "     - computed", *rows]) + "\n"


# -------------------------------------------------------------------------------------------------- Sphinx
def pages():
    """Return the generated parts: name of the file to text."""
    with compiled():
        out = {"errors": errors_page(), "supported": supported_page(), "modules": modules_page(), "formulas": formulas_page()}
    return {**out, **{f"stage_{name}": text for name, text in stages().items()}}


def write_pages(folder):
    """Write the generated parts; files that have not changed are left alone."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        file = folder / f"{name}.rst"
        if not file.exists() or file.read_text() != text:
            file.write_text(text)


def setup(app):
    """Connect to Sphinx."""
    app.connect("builder-inited", lambda app: write_pages(pathlib.Path(app.srcdir) / "_generated"))
    return {"parallel_read_safe": True}
