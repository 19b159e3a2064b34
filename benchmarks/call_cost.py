"""What a call costs whose structure has been seen before: a fixed part, and a part for each equation.

Prints, for steps of growing length, the time of a call of one step (the kernel itself takes next to nothing) and
the straight line through these times; forward, and value with gradient.

    python -m benchmarks.call_cost
"""

import time

import numpy as np

import nscan as ns
from nscan.trace import StepTrace

RATE = 0.1


def chain(count):
    """Make a step of about `count` equations: arithmetic on arrays, as most steps are."""
    def step(x, h):
        for k in range(count // 4):
            h = np.tanh(h * x + h) - x if k % 8 == 7 else h * x + x - h
        return h
    return step


def scalars(count):
    """Make a step of about `count` equations on numbers taken from a small array and put back into one."""
    def step(x, h):
        a, b, c = h[0], h[1], h[2]
        for _ in range(count // 6):
            a, b, c = a + RATE * (b - a), b - RATE * c, c + x
        return np.stack([a, b, c])
    return step


def equations(step, x, h):
    """Count the equations that a step makes."""
    with StepTrace("count") as trace:
        step(trace.new_input(x.shape[1:], x.dtype), trace.new_input(h.shape, h.dtype))
    return len(trace.eqns)


def seconds(functions, repeat=20, rounds=15):
    """Return the shortest mean processor time of a call of each function; they take turns, since other programs run beside."""
    best = np.full(len(functions), np.inf)
    for function in functions * 2:
        function()
    for _ in range(rounds):
        for k, function in enumerate(functions):
            start = time.thread_time()
            for _ in range(repeat):
                function()
            best[k] = min(best[k], (time.thread_time() - start) / repeat)
    return best


def calls(step, x, h):
    """Return the loop as a call, and its value and gradient as a call."""
    both = ns.value_and_grad(lambda h: np.sum(ns.scan(step, x, h)))
    return [lambda: ns.scan(step, x, h), lambda: both(h)]


def measure(make, x, h, counts):
    """Return equations, seconds forward, and seconds with gradient, for steps of several lengths."""
    steps = [make(count) for count in counts]
    best = seconds([f for step in steps for f in calls(step, x, h)])
    return np.array([(equations(step, x, h), *pair) for step, pair in zip(steps, best.reshape(-1, 2))])


def main():
    """Print the table."""
    print(f"{'':10}{'equations':>12}{'forward':>12}{'value+grad':>12}   (microseconds)")
    for name, make, x, h in (("arrays", chain, np.full((1, 3), 0.1), np.full(3, 0.5)),
                             ("scalars", scalars, np.full(1, 0.1), np.full(3, 0.5))):
        rows = measure(make, x, h, (12, 48, 96, 192))
        for n, forward, both in rows:
            print(f"{name:10}{n:12.0f}{1e6 * forward:12.0f}{1e6 * both:12.0f}")
        lines = [np.polyfit(rows[:, 0], 1e6 * rows[:, k], 1) for k in (1, 2)]
        print(f"{name:10}" + ", ".join(f"{what}: {a:.0f} + {b:.1f} n" for what, (b, a) in zip(("forward", "value+grad"), lines)))


if __name__ == "__main__":
    main()
