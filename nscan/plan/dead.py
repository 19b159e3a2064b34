"""Dead values of a loop program: what nobody reads is not printed.

The builder makes parameters and loads where a part of a program begins, before it is known who needs them.
"""


def bodies(s):
    """Return the lists of statements inside a statement."""
    return {"range": s[6:7], "while": s[2:3], "if": s[2:4]}.get(s[0], ())


def size(statements):
    """Return the number of statements, inner ones included."""
    return len(statements) + sum(size(inner) for s in statements for inner in bodies(s))


def results(s):
    """Return the values that a statement defines for those after it."""
    if s[0] in ("let", "load", "fold"):
        return s[1:2]
    if s[0] in ("range", "while"):
        return [c[3] for c in s[5 if s[0] == "range" else 1]]
    return [r[0] for r in s[4]] if s[0] == "if" else s[4:5] if s[0] == "call" else ()


def reads(s):
    """Return the values that a statement reads, and perhaps some that it defines inside, as a set."""
    used = set(results(s))
    _live_one(s, used)
    return used.difference(results(s))


def live(statements, used=None):
    """Drop values that nobody reads.

    Parameters
    ----------
    statements : tuple
    used : set of int, optional
        Values that are read afterwards; those that the statements read are added.

    Returns
    -------
    tuple of statements
    """
    used = set() if used is None else used
    kept = []
    for s in reversed(statements):
        s = _live_one(s, used)
        if s is not None:
            kept.append(s)
    return tuple(reversed(kept))


def _live_one(s, used):
    """Return a statement without its dead parts, or None if it is dead as a whole."""
    kind = s[0]
    if kind in ("let", "load", "fold"):
        if s[1] not in used:
            return None
        _read(used, s[4] if kind == "let" else s[4:5])
    elif kind == "range":
        _, i, lo, hi, width, carries, body, yields = s
        return _live_loop(used, (i, lo, hi, width), (lo, hi), carries, body, yields, "range")
    elif kind == "while":
        return _live_loop(used, (), (), *s[1:], "while")
    elif kind == "if":
        return _live_branch(s, used)
    else:
        _read(used, _operands(s))
    return s


def _operands(s):
    """Operands of a statement that is needed for what it does."""
    if s[0] == "store":
        return s[3:5]
    if s[0] == "tick":
        return s[1:2]
    return (s[2], *s[3]) if s[0] == "call" else (s[1], *s[4:])


def _read(used, operands):
    used.update(x for x in operands if type(x) is int)


def _live_loop(used, head, bounds, carries, body, yields, kind):
    inside = set()
    _read(inside, yields)
    body = live(body, inside)
    if not _acts(body) and not any(r in used for _, _, _, r in carries):
        return None
    used |= inside
    _read(used, (*bounds, *[c[1] for c in carries]))
    return (kind, *head, carries, body, yields)


def _live_branch(s, used):
    _, condition, then, other, results = s
    results = tuple(r for r in results if r[0] in used)
    branches = []
    for k, body in ((2, then), (3, other)):
        inside = set()
        _read(inside, [r[k] for r in results])
        branches.append(live(body, inside))
        used |= inside
    if not results and not any(map(_acts, branches)):
        return None
    _read(used, (condition,))
    return ("if", condition, *branches, results)


def _acts(statements):
    """Whether statements do anything but compute values."""
    return any(s[0] in ("store", "call", "fail", "tick") or any(map(_acts, bodies(s))) for s in statements)
