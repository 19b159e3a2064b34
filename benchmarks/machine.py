"""What the figures were measured with."""

import datetime
import importlib.metadata
import os
import pathlib
import platform
import subprocess

PACKAGES = ("numpy", "scipy", "numba", "llvmlite", "jax", "torch")


def version(package):
    """Return the version of a package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def processor():
    """Return the name of the processor."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def describe(pytensor=None):
    """Return a dict of facts."""
    facts = {"date": datetime.date.today().isoformat(), "python": platform.python_version(), "processor": processor(),
             "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1),
             **{package: found for package in PACKAGES if (found := version(package))}}
    if pytensor:
        code = "import pytensor, numba; print(pytensor.__version__, numba.__version__)"
        done = subprocess.run([pytensor, "-c", code], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            facts["pytensor"] = "{} with numba {}".format(*done.stdout.split())
    return facts
