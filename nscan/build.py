"""From text to a kernel: a file named by its content, compiled by Numba, cached on disk.

The name is a hash of the program, of nscan's emitting modules and of the versions of Numba and llvmlite, since
Numba's own cache looks at the file alone. A file is written once, atomically; if the folder cannot be
written, the kernel lives in memory only.
"""

import contextlib
import hashlib
import importlib.util
import os
import pathlib
import sys
import tempfile
import types

import llvmlite
import numba

from nscan.config import config

EMITTERS = ("plan/*.py", "cpu/llvm*.py", "cpu/math*.py", "cpu/helpers.py", "build.py", "ops/pointwise.py")
PREFIX = "nscan_kernel_"

TEMPLATE = '''"""A kernel of nscan: its program is the text below, its printer is nscan.cpu.llvm."""
from numba import cfunc, types
from numba.extending import intrinsic

FEATURES = {features!r}
TEXT = (
{text}
)


@intrinsic
def body(context, flags, status, step0, step1, lane0, lane1, part, block):
    def emit(context, builder, signature, arguments):
        from nscan.cpu.llvm import kernel_body
        return kernel_body(context, builder, arguments, TEXT, FEATURES)
    return types.void(flags, status, step0, step1, lane0, lane1, part, block), emit


INT, POINTER = types.int64, types.CPointer(types.int64)


@cfunc(types.void(INT, POINTER, INT, INT, INT, INT, INT, POINTER), cache={cache}, error_model="numpy")
def kernel(flags, status, step0, step1, lane0, lane1, part, block):
    body(flags, status, step0, step1, lane0, lane1, part, block)
'''

_EMITTER_HASH = []


def emitter_hash():
    """Hash of everything that decides how a program becomes machine code."""
    if not _EMITTER_HASH:
        root = pathlib.Path(__file__).parent
        digest = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__}".encode())
        for pattern in EMITTERS:
            for file in sorted(root.glob(pattern)):
                digest.update(file.read_bytes())
        _EMITTER_HASH.append(digest.hexdigest())
    return _EMITTER_HASH[0]


def kernel_name(text, features):
    """Name of the kernel with this program on this kind of host, at Numba's level of optimisation."""
    digest = hashlib.sha256(f"{emitter_hash()} {numba.config.OPT} {features} {text}".encode())
    return PREFIX + digest.hexdigest()[:32]


def folder():
    """Folder of the kernel files: private, made on first use; None if it cannot be used."""
    chosen = config.cache_dir
    if chosen is None:
        import platformdirs
        chosen = os.path.join(platformdirs.user_cache_dir("nscan"), "kernels")
    path = pathlib.Path(chosen)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path if os.access(path, os.W_OK) else None
    except OSError:
        return None


def build(text, features):
    """Compile a program, or load it from the cache.

    Parameters
    ----------
    text : str
    features : tuple of str

    Returns
    -------
    module
        Its `kernel.address` is the address of the compiled function.
    """
    return build_text(kernel_name(text, features), lambda cache: source(text, features, cache))


def build_text(name, text):
    """Execute generated text as a module, from a file of its name where that can be written.

    Parameters
    ----------
    name : str
        Says what is in the text: two texts never share a name.
    text : callable
        ``text(cache)`` gives it, for a file (cache=True) or for memory.

    Returns
    -------
    module
    """
    found = sys.modules.get(name)
    if found is not None:
        return found
    where = folder()
    for _ in range(2 if where is not None else 0):
        try:
            file = where / f"{name}.py"
            if not file.exists():
                write(file, text(True))
                shrink(where)
            return load(name, file)
        except Exception:
            # A damaged file of ours or of Numba's cache; a fault of the text itself shows again below.
            discard(where, name)
    return in_memory(name, text(False))


def source(text, features, cache):
    """Text of a kernel file."""
    lines = [text[k:k + 110] for k in range(0, len(text), 110)]
    return TEMPLATE.format(text="\n".join(f"    {line!r}" for line in lines), features=features, cache=cache)


def write(file, text):
    """Write a file at once: readers see all of it or nothing."""
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=file.stem, suffix=".tmp")
    try:
        with os.fdopen(handle, "w") as stream:
            stream.write(text)
        os.replace(temporary, file)
    except BaseException:
        pathlib.Path(temporary).unlink(missing_ok=True)
        raise


def load(name, file):
    """Execute a kernel file as a module; Numba's cache needs it in ``sys.modules`` beforehand."""
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def in_memory(name, text):
    """Execute the text of a kernel without a file."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    try:
        exec(compile(text, f"<nscan {name}>", "exec"), module.__dict__)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def discard(where, name):
    """Remove the files of a kernel that cannot be loaded."""
    for file in [where / f"{name}.py", *(where / "__pycache__").glob(f"{name}*")]:
        with contextlib.suppress(OSError):
            file.unlink()


def shrink(where):
    """Keep the folder under its size: the oldest kernels go first."""
    files = [(f.stat().st_mtime, f.stat().st_size, f) for f in where.rglob(f"{PREFIX}*") if f.is_file()]
    total = sum(size for _, size, _ in files)
    for _, size, file in sorted(files):
        if total <= config.cache_bytes:
            break
        file.unlink(missing_ok=True)
        total -= size
