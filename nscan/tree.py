"""Nests of arrays: tuples, lists, dicts, named tuples and dataclasses, flattened to leaves with paths.

``None`` is an empty nest, as in JAX; every other object that is no container is a leaf.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Leaf:
    """The place of one leaf."""


@dataclasses.dataclass(frozen=True)
class Node:
    """The place of a container: its type, the keys of its children, their structures."""

    kind: type
    keys: tuple
    children: tuple


LEAF = Leaf()


def _split(nest):
    """Return (keys, children) of a container, or None for a leaf."""
    kind = type(nest)
    if nest is None:
        return (), ()
    if kind is dict or isinstance(nest, dict):
        return tuple(nest), tuple(nest.values())
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        return nest._fields, tuple(nest)
    if isinstance(nest, (tuple, list)):
        return tuple(range(len(nest))), tuple(nest)
    if dataclasses.is_dataclass(nest) and not isinstance(nest, type):
        names = tuple(f.name for f in dataclasses.fields(nest))
        return names, tuple(getattr(nest, n) for n in names)
    return None


def flatten(nest):
    """Split a nest into its leaves and its structure.

    Returns
    -------
    leaves : list
    structure : Leaf or Node
        Equal for two nests exactly if they differ in their leaves only.
    """
    leaves = []
    return leaves, _flatten(nest, leaves)


def _flatten(nest, leaves):
    parts = _split(nest)
    if parts is None:
        leaves.append(nest)
        return LEAF
    keys, children = parts
    return Node(type(nest), keys, tuple(_flatten(child, leaves) for child in children))


def unflatten(structure, leaves):
    """Build a nest from its structure and an iterable of leaves."""
    return _unflatten(structure, iter(leaves))


def _unflatten(structure, leaves):
    if structure is LEAF or isinstance(structure, Leaf):
        return next(leaves)
    kind = structure.kind
    children = [_unflatten(child, leaves) for child in structure.children]
    if kind is type(None):
        return None
    if issubclass(kind, dict):
        return kind(zip(structure.keys, children))
    if issubclass(kind, tuple):
        return kind(*children) if hasattr(kind, "_fields") else kind(children)
    if issubclass(kind, list):
        return kind(children)
    return kind(**dict(zip(structure.keys, children)))


def paths(structure, root=""):
    """Name each leaf by the way to it, such as ``init['cell'][0]``."""
    if isinstance(structure, Leaf):
        return [root]
    by_name = not (issubclass(structure.kind, (dict, tuple, list)) or structure.kind is type(None)) or hasattr(
        structure.kind, "_fields")
    names = [f"{root}.{k}" if by_name else f"{root}[{k!r}]" for k in structure.keys]
    return [path for name, child in zip(names, structure.children) for path in paths(child, name)]


def map_leaves(function, nest, *others):
    """Apply a function to the leaves of nests of one structure; return a nest of that structure."""
    leaves, structure = flatten(nest)
    rest = [flatten(other)[0] for other in others]
    return unflatten(structure, [function(*leaf) for leaf in zip(leaves, *rest)])


def leaves_like(nest, structure):
    """Leaves of a nest of that structure in which None stands for every leaf below it; None if it does not fit."""
    if nest is None or isinstance(structure, Leaf):
        count = len(paths(structure))
        return [nest] * count if isinstance(structure, Leaf) or nest is None else None
    parts = _split(nest)
    if parts is None or type(nest) is not structure.kind or parts[0] != structure.keys:
        return None
    found = [leaves_like(child, part) for child, part in zip(parts[1], structure.children)]
    return None if any(f is None for f in found) else [leaf for f in found for leaf in f]


def describe(structure):
    """Write a structure as a short text for messages: ``(*, [*, *])``."""
    if isinstance(structure, Leaf):
        return "*"
    inner = [describe(child) for child in structure.children]
    kind = structure.kind
    if kind is type(None):
        return "None"
    if issubclass(kind, dict):
        return "{" + ", ".join(f"{k!r}: {c}" for k, c in zip(structure.keys, inner)) + "}"
    if kind is list:
        return "[" + ", ".join(inner) + "]"
    if kind is tuple:
        return "(" + ", ".join(inner) + ("," if len(inner) == 1 else "") + ")"
    return kind.__name__ + "(" + ", ".join(f"{k}={c}" for k, c in zip(structure.keys, inner)) + ")"
