"""One piece of wrong code for each error, run while the page of errors is built.

`EXAMPLES` maps the name of a class to code that raises it. The code sees ``np`` and ``ns`` and is compiled as
the file ``example.py``, so that messages name its lines.
"""

EXAMPLES = {
    "SpecError": """
x = np.arange(4.0)
ns.scan(lambda x: x, [dict(input=x, tap=[0])])
""",
    "ArityError": """
x = np.arange(4.0)
ns.scan(lambda x: x, x, outputs_info=0.0)
""",
    "OutputsError": """
def step(x, h, c):
    return h + x

ns.scan(step, np.arange(4.0), outputs_info=[0.0, 0.0])
""",
    "OutputTypeError": """
def step(x, h):
    h = h + x

ns.scan(step, np.arange(4.0), outputs_info=0.0)
""",
    "TapError": """
x = np.arange(4.0)
ns.scan(lambda x, h: h + x, x, outputs_info=dict(initial=np.zeros(2), taps=[0]))
""",
    "LengthError": """
x = np.arange(6.0)
ns.scan(lambda x: x, x, n_steps=10)
""",
    "StepsTypeError": """
ns.scan(lambda h: 2 * h, outputs_info=1.0, n_steps=10.0)
""",
    "DtypeError": """
names = np.array(["a", "b"])
ns.scan(lambda name: name, names)
""",
    "StateShapeError": """
def grow(x, h):
    return np.concatenate([h, x])

ns.scan(grow, np.ones((5, 1)), outputs_info=np.zeros(3))
""",
    "StructureError": """
def step(carry, x):
    h, c = carry
    return [h + x, c], h

ns.loop(step, (0.0, 0.0), np.arange(4.0))
""",
    "TracedValueError": """
def relu(x, h):
    if h > 0:
        return h + x
    return x

ns.scan(relu, np.arange(4.0), outputs_info=0.0)
""",
    "EscapedError": """
history = []

def step(x, h):
    h = np.tanh(h + x)
    history.append(h)
    return h

ns.scan(step, np.arange(4.0), outputs_info=0.0)
np.mean(history[0])
""",
    "ReadOnlyError": """
def count(k, table):
    table[k] += 1
    return table[k]

ns.scan(count, np.array([0, 1, 0]), non_sequences=np.zeros(2))
""",
    "UnsupportedError": """
ns.scan(lambda row: np.unique(row), np.ones((2, 3)))
""",
    "UnsupportedIndexError": """
table = np.array([10.0, 20.0, 30.0])

def look_up(k):
    return table[k]

ns.scan(look_up, np.array([2, 0]))
""",
    "AxisRangeError": """
def last(row):
    return row[3]

ns.scan(last, np.ones((2, 3)))
""",
    "HiddenStateError": """
rng = np.random.default_rng(0)

def noisy(x, h):
    return 0.9 * h + x + rng.normal()

ns.scan(noisy, np.arange(4.0), outputs_info=0.0)
""",
    "IndexRangeError": """
def look_up(k, table):
    return table[k]

ns.scan(look_up, np.array([0, 5, 1]), non_sequences=np.arange(3.0))
""",
    "SingularError": """
def solve(a, b):
    return np.linalg.solve(a, b)

matrices = np.array([np.eye(2), np.zeros((2, 2))])
ns.scan(solve, [matrices, np.ones((2, 2))])
""",
    "SizeError": """
def head(k, row):
    return row[:k]

ns.scan(head, np.array([1, 2]), non_sequences=np.arange(5.0))
""",
    "ArithmeticStepError": """
def power(n):
    return np.array([2, 3]) ** n

ns.scan(power, np.array([1, -1]))
""",
    "GradientTypeError": """
ns.grad(lambda x: np.sum(x ** 2))(np.arange(3))
""",
    "NotScalarError": """
ns.grad(lambda x: x ** 2)(np.arange(3.0))
""",
    "CotangentError": """
out, pull = ns.vjp(np.sin, np.zeros(3))
pull(np.ones(4))
""",
    "ChangedError": """
x = np.arange(3.0)
out, pull = ns.vjp(np.sin, x)
x[:] = 0
pull(np.ones(3))
""",
    "GradientCheckError": """
@ns.custom_vjp
def cube(x):
    return x ** 3

cube.defvjp(lambda x: (x ** 3, x), lambda x, ct: (2 * x ** 2 * ct,))
ns.check_grads(cube, (1.5,), order=1)
""",
    "NonFiniteError": """
ns.scan(lambda x, v: np.log(v) - x, np.array([0.0, 1.0, 2.0]), outputs_info=2.0, check_finite=True)
""",
}
