"""An implementation in another process, for a library that cannot live beside the others.

The parent sends requests over a pipe, and the times are taken in the child. So turns of the parent and of the child
alternate, as in one process.
"""

import os
import pathlib
import pickle
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]


class Remote:
    """An implementation behind a pipe.

    Parameters
    ----------
    python : str
        Interpreter to run.
    name : str
        Name of the library.
    loop : Loop
    """

    def __init__(self, python, name, loop):
        if python is None:
            raise ImportError("no interpreter given", name=name)
        self.name, self.factor = name, loop.n / loop.short
        self.process = subprocess.Popen([python, "-m", "benchmarks.remote", name, loop.name], cwd=ROOT,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            self.directions = self._receive()
        except Exception:
            self.close()
            raise

    def _receive(self):
        kind, value = pickle.load(self.process.stdout)
        if kind == "error":
            raise ImportError(value, name=self.name) if value.startswith("No module") else RuntimeError(value)
        return value

    def _ask(self, *request):
        pickle.dump(request, self.process.stdin)
        self.process.stdin.flush()
        return self._receive()

    def results(self, direction):
        """Run once and return arrays."""
        return self._ask("results", direction)

    def seconds(self, direction, count):
        """Return the time of a call, a mean over `count` of them."""
        return self._ask("seconds", direction, count)

    def close(self):
        """End the process."""
        self.process.stdin.close()
        self.process.kill()
        self.process.wait()


def serve(name, loop_name):
    """Answer requests until the pipe is closed."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get among the answers

    def answer(function):
        try:
            value = "value", function()
        except Exception as error:
            value = "error", str(error).strip() or type(error).__name__
        pickle.dump(value, answers)
        answers.flush()
        return value[0] == "value"
    made = []

    def start():
        from benchmarks.harness import Local
        from benchmarks.libraries import LIBRARIES
        from benchmarks.loops import LOOPS

        loop = LOOPS[loop_name]
        made.append(Local(name, LIBRARIES[name]().calls(loop, loop.arrays(loop.short)), loop.n / loop.short))
        return made[0].directions
    if not answer(start):
        return
    while True:
        try:
            method, *args = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        answer(lambda: getattr(made[0], method)(*args))  # noqa: B023


if __name__ == "__main__":
    serve(*sys.argv[1:])
