"""The array libraries of the suite, each with the few functions that the formulas of the loops use.

`scan` is that of nscan: ``scan(step, sequences, states, constants, n_steps)`` returns a list of stacked rows. In the
libraries without a compiled loop it is a Python loop. `loop` keeps only the last states: ``loop(step, carry, xs)`` returns
them and the stacked rows of ``y``, with ``step(carry, x) -> (carry, y)``. `map` applies a function to the rows of arrays.
"""

import numpy as np
import scipy.special


class NumPy:
    """A plain Python loop over NumPy arrays; no derivatives."""

    name = "numpy"
    eager = True
    exp, log, tanh, sum, mean, where, abs = map(staticmethod, (np.exp, np.log, np.tanh, np.sum, np.mean, np.where, np.abs))
    maximum, stack, concatenate, zeros = map(staticmethod, (np.maximum, np.stack, np.concatenate, np.zeros))
    sigmoid, inv = staticmethod(scipy.special.expit), staticmethod(np.linalg.inv)
    softplus = staticmethod(lambda x: np.logaddexp(x, 0))
    logsumexp = staticmethod(lambda x, axis: scipy.special.logsumexp(x, axis=axis))
    log_softmax = staticmethod(lambda x: scipy.special.log_softmax(x, axis=-1))
    transpose = staticmethod(lambda x: np.swapaxes(x, -1, -2))

    def scan(self, step, sequences=(), states=(), constants=(), n_steps=None):
        """Run the loop in Python."""
        states, columns = list(states), [[] for _ in states]
        for t in range(len(sequences[0]) if n_steps is None else n_steps):
            fed = [s for s in states if s is not None]
            outs = step(*[x[t] for x in sequences], *fed, *constants)
            outs = outs if isinstance(outs, tuple) else (outs,)
            states = [None if s is None else out for s, out in zip(states, outs, strict=True)]
            for column, out in zip(columns, outs, strict=True):
                column.append(out)
        return [self.stack(column) for column in columns]

    def loop(self, step, carry, xs):
        """Run the loop in Python."""
        rows = []
        for x in zip(*xs, strict=True):
            carry, y = step(carry, x)
            rows.append(y)
        return carry, self.stack(rows)

    def map(self, function, sequences, constants=()):
        """Apply a function to each row."""
        rows = [function(*row, *constants) for row in zip(*sequences, strict=True)]
        return self.stack(rows)

    def calls(self, loop, data):
        """Return the callables of a loop."""
        return {"forward": lambda: loop.run(self, **data)}


class Nscan(NumPy):
    """The loops of this library."""

    name = "nscan"
    eager = False

    def __init__(self):
        import nscan

        self.ns = nscan
        self.sigmoid, self.softplus = nscan.sigmoid, nscan.softplus
        self.logsumexp, self.log_softmax = nscan.logsumexp, nscan.log_softmax

    def scan(self, step, sequences=(), states=(), constants=(), n_steps=None):
        """Run nscan's loop."""
        return self.ns.scan(step, list(sequences), list(states), list(constants), n_steps, return_list=True)

    def loop(self, step, carry, xs):
        """Run nscan's loop."""
        return self.ns.loop(step, carry, xs)

    def map(self, function, sequences, constants=()):
        """Run nscan's map."""
        return self.ns.map(function, list(sequences), list(constants))

    def value_and_grad(self, function, argnums=0):
        """Return the derivative of a function."""
        return self.ns.value_and_grad(function, argnums)

    def calls(self, loop, data):
        """Return the callables of a loop."""
        return functional_calls(self, loop, data, lambda f: f)


class Jax(NumPy):
    """JAX: `lax.scan` under `jit`."""

    name = "jax"
    eager = False

    def __init__(self):
        import jax

        jax.config.update("jax_enable_x64", True)
        self.jax, jnp = jax, jax.numpy
        for name in ("exp", "log", "tanh", "sum", "mean", "where", "abs", "maximum", "stack", "concatenate", "zeros"):
            setattr(self, name, getattr(jnp, name))
        self.inv, self.transpose = jnp.linalg.inv, lambda x: jnp.swapaxes(x, -1, -2)
        self.sigmoid, self.softplus = jax.nn.sigmoid, jax.nn.softplus
        self.logsumexp, self.log_softmax = jax.nn.logsumexp, jax.nn.log_softmax

    def scan(self, step, sequences=(), states=(), constants=(), n_steps=None):
        """Run `lax.scan`."""
        def body(carry, xs):
            outs = step(*xs, *carry, *constants)
            outs = outs if isinstance(outs, tuple) else (outs,)
            return tuple(o for s, o in zip(states, outs, strict=True) if s is not None), outs
        carry = tuple(self.jax.numpy.asarray(s) for s in states if s is not None)
        return self.jax.lax.scan(body, carry, tuple(sequences), n_steps)[1]

    def loop(self, step, carry, xs):
        """Run `lax.scan`."""
        return self.jax.lax.scan(step, carry, xs)

    def map(self, function, sequences, constants=()):
        """Run `vmap`."""
        return self.jax.vmap(lambda *row: function(*row, *constants))(*sequences)

    def value_and_grad(self, function, argnums=0):
        """Return the derivative of a function."""
        return self.jax.value_and_grad(function, argnums)

    def calls(self, loop, data):
        """Return the callables of a loop."""
        def compiled(function):
            function = self.jax.jit(function)
            return lambda *args: self.jax.block_until_ready(function(*args))
        return functional_calls(self, loop, {k: self.jax.numpy.asarray(v) if isinstance(v, np.ndarray) else v
                                             for k, v in data.items()}, compiled)


def functional_calls(lib, loop, data, compiled):
    """Return the callables of a loop, for a library that differentiates functions."""
    names = [k for k, v in data.items() if type(v) not in (int, float)]
    fixed = {k: v for k, v in data.items() if k not in names}
    args = [data[k] for k in names]

    def value(*args):
        given = {**dict(zip(names, args, strict=True)), **fixed}
        return loop.loss(lib, loop.run(lib, **given), **given)
    forward = compiled(lambda *args: tuple(loop.run(lib, **dict(zip(names, args, strict=True)), **fixed)))
    calls = {"forward": lambda: forward(*args)}
    if loop.loss is not None:
        derivative = compiled(lib.value_and_grad(value, tuple(names.index(k) for k in loop.wrt)))

        def gradient():
            number, slopes = derivative(*args)
            return number, *slopes
        calls["gradient"] = gradient
    return calls


class Torch(NumPy):
    """PyTorch, eager."""

    name = "torch"

    def __init__(self):
        import torch

        torch.set_num_threads(1)
        self.torch = torch
        for name in ("exp", "log", "tanh", "sum", "mean", "where", "abs", "maximum", "stack", "concatenate", "sigmoid"):
            setattr(self, name, getattr(torch, name))
        self.inv, self.transpose = torch.linalg.inv, lambda x: torch.swapaxes(x, -1, -2)
        self.softplus, self.logsumexp = torch.nn.functional.softplus, lambda x, axis: torch.logsumexp(x, axis)
        self.log_softmax = lambda x: torch.log_softmax(x, -1)
        self.zeros = lambda shape, dtype=np.float64: torch.zeros(shape, dtype=getattr(torch, np.dtype(dtype).name))

    def value_and_grad(self, function, argnums=0):
        """Return the derivative of a function."""
        positions = (argnums,) if isinstance(argnums, int) else argnums

        def derivative(*args):
            args = [a.detach().requires_grad_() if k in positions else a for k, a in enumerate(args)]
            value = function(*args)
            slopes = self.torch.autograd.grad(value, [args[k] for k in positions])
            return value.detach(), slopes[0] if isinstance(argnums, int) else slopes
        return derivative

    def calls(self, loop, data):
        """Return the callables of a loop."""
        data = {k: self.torch.as_tensor(v) if isinstance(v, np.ndarray | np.floating) else v for k, v in data.items()}
        calls = functional_calls(self, loop, data, lambda f: f)
        forward = calls["forward"]

        def without_tape():
            with self.torch.no_grad():
                return forward()
        if loop.loss is not None:
            calls["forward"] = without_tape
        return calls


class PyTensor(NumPy):
    """PyTensor: `scan`, compiled in its default mode."""

    name = "pytensor"

    def __init__(self):
        import pytensor
        import pytensor.tensor as pt

        self.pytensor, self.pt = pytensor, pt
        for name in ("exp", "log", "tanh", "sum", "mean", "abs", "maximum", "stack", "sigmoid", "softplus", "zeros"):
            setattr(self, name, getattr(pt, name))
        self.where, self.concatenate, self.inv = pt.switch, pt.concatenate, pt.linalg.inv
        self.logsumexp, self.log_softmax = pt.logsumexp, lambda x: pt.special.log_softmax(x, axis=-1)
        self.transpose = lambda x: pt.swapaxes(x, -1, -2)

    def scan(self, step, sequences=(), states=(), constants=(), n_steps=None):
        """Run PyTensor's scan."""
        rows = self.pytensor.scan(step, list(sequences), list(states), list(constants), n_steps, return_list=True,
                                  return_updates=False)
        return rows

    def loop(self, step, carry, xs):
        """Run PyTensor's scan and keep its last states."""
        def flat(*args):
            states, y = step(tuple(args[len(xs):]), tuple(args[:len(xs)]))
            return (*states, y)
        *states, ys = self.scan(flat, xs, [*carry, None])
        return tuple(x[-1] for x in states), ys

    def map(self, function, sequences, constants=()):
        """Run a scan without states."""
        return self.scan(function, sequences, [None], constants)[0]

    def calls(self, loop, data):
        """Return the callables of a loop."""
        symbols = {k: self.pt.as_tensor(v).type(k) if isinstance(v, np.ndarray | np.floating) else v
                   for k, v in data.items()}
        names = [k for k, v in symbols.items() if type(v) not in (int, float)]
        args = [np.asarray(data[k]) for k in names]
        rows = loop.run(self, **symbols)
        options = {"on_unused_input": "ignore", "trust_input": True}
        inputs = [symbols[k] for k in names]
        forward = self.pytensor.function(inputs, list(rows), **options)
        calls = {"forward": lambda: forward(*args)}
        if loop.loss is not None:
            value = loop.loss(self, rows, **symbols)
            slopes = self.pytensor.grad(value, [symbols[k] for k in loop.wrt])
            gradient = self.pytensor.function(inputs, [value, *slopes], **options)
            calls["gradient"] = lambda: gradient(*args)
        return calls


LIBRARIES = {c.name: c for c in (Nscan, NumPy, Jax, Torch, PyTensor)}
