"""The ladder of imports: every module stands on a rung and imports from its own rung or a lower one."""

import ast
import fnmatch
import pathlib

# From the lowest rung to the highest: name, patterns of module names (without "nscan."), what stands there.
RUNGS = (
    ("ground", ("errors", "config", "tree", "tape", "state", "content", "checkpoint", "buffers"),
     "Values without behaviour: errors, settings, nests, tapes."),
    ("rows", ("primitive", "elementwise", "hints"),
     "What a row is, its makers, the table."),
    ("traces", ("rewrites", "optimise", "places", "trace"),
     "How a tape is filled and simplified; ``bind``, which applies a row to anything."),
    ("arrays", ("array", "interpret"),
     "The traced array; running a tape."),
    ("rules", ("grad", "grad.reverse", "grad.flow", "grad.forward", "grad.loop", "grad.second",
               "grad.branch"),
     "Derivatives of tapes: the rule of the loop and what it needs."),
    ("families", ("ops", "ops.*"),
     "The rows, by family."),
    ("calls", ("edge", "spec", "step", "batch", "exchange", "lanes", "control", "profile", "watch"),
     "From a user's call to a loop equation."),
    ("derivatives", ("grad.higher", "grad.custom", "grad.jacobian", "grad.check", "special", "random"),
     "Functions that users call: derivatives of functions, and a few functions of arrays."),
    ("plan", ("plan", "plan.*"),
     "From a loop equation to a loop program."),
    ("build", ("build", "source"),
     "From a program to a compiled, cached kernel."),
    ("targets", ("cpu", "cpu.*", "gpu", "gpu.*"),
     "Printing programs and running kernels."),
    ("front", ("api", "recurrence", "explain", "observe", "finite", ""),
     "The loops that users call; the public names."),
    ("program", ("__main__", "demo", "demo.*"),
     "What ``python -m nscan`` runs; a user of the library like any other."),
)


def rung_of(module):
    """Return the number of the rung of a module (without ``nscan.``), or None if it has none."""
    for k, (_, patterns, _) in enumerate(RUNGS):
        if any(fnmatch.fnmatchcase(module, pattern) for pattern in patterns):
            return k
    return None


def modules(root):
    """Return the modules of the package: name without ``nscan.`` (the package itself: empty) to path."""
    out = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        out[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return out


def imports(name, path, known):
    """Return what a module imports of the package: (on import, inside functions), as sets of names."""
    outer, inner = set(), set()

    def visit(node, inside):
        found = inner if inside else outer
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ImportFrom):
                found.update(_targets(name, path, child, known))
            elif isinstance(child, ast.Import):
                found.update(a.name[6:] for a in child.names if a.name.split(".")[0] == "nscan")
            visit(child, inside or isinstance(child, (ast.FunctionDef, ast.Lambda)))

    visit(ast.parse(path.read_text()), False)
    return outer, inner


def _targets(name, path, node, known):
    base = node.module or ""
    if node.level:
        package = name if path.stem == "__init__" else name.rpartition(".")[0]
        for _ in range(node.level - 1):
            package = package.rpartition(".")[0]
        base = ".".join(part for part in (package, base) if part)
    elif base == "nscan" or base.startswith("nscan."):
        base = base[6:]
    else:
        return set()
    found = {".".join(part for part in (base, alias.name) if part) for alias in node.names}
    return {target if target in known else base for target in found}


def report(root=None):
    """Return for each module (rung, imports on import, imports in functions), in the order of the ladder."""
    root = pathlib.Path(root or pathlib.Path(__file__).parents[2] / "nscan")
    known = modules(root)
    rows = {name: (rung_of(name), *imports(name, path, known)) for name, path in known.items()}
    return dict(sorted(rows.items(), key=lambda item: (-1 if item[1][0] is None else item[1][0], item[0])))


def upward(rows, where):
    """Return pairs of modules, the first of which imports the second from a higher rung.

    `where` is 1 for imports on import, 2 for those in functions.
    """
    def is_upward(rung, target):
        return rung is None or rung_of(target) is None or rung_of(target) > rung

    return sorted((name, target) for name, row in rows.items() for target in row[where]
                  if is_upward(row[0], target))
