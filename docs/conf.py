"""Sphinx configuration: ``sphinx-build -W -b html docs docs/_build/html``."""

import os
import pathlib
import re
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]
os.environ.setdefault("NSCAN_CACHE_DIR", os.path.join(tempfile.gettempdir(), f"nscan-docs-{os.getuid()}"))

from nscan_pages import gather_examples  # noqa: E402

import nscan  # noqa: E402

project = "nscan"
author = "the nscan developers"
copyright = author
version = release = nscan.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.autosummary", "numpydoc", "nscan_pages", "myst_parser"]
default_role = "py:obj"
templates_path = ["_templates"]
exclude_patterns = ["_build", "_generated"]
html_theme = "furo"
html_title = "nscan"

autosummary_generate = True
autodoc_typehints = "none"
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False

# The gallery runs every examples/plot_*.py, except one with the line "# docs: do not run" (because it takes
# longer than a few seconds). NSCAN_DOCS_GALLERY=0 runs none. Without examples there is no gallery.
examples = gather_examples(HERE.parent / "examples", HERE / "_generated")
if examples is None:
    exclude_patterns += ["gallery", "sg_execution_times.rst"]
else:
    extensions.append("sphinx_gallery.gen_gallery")
    sphinx_gallery_conf = {
        "examples_dirs": str(examples.folder),
        "gallery_dirs": "gallery",
        "filename_pattern": "|".join(rf"/{re.escape(name)}$" for name in examples.quick) or "(?!)",
        "plot_gallery": os.environ.get("NSCAN_DOCS_GALLERY", "1") != "0",
        "show_memory": False,
        "download_all_examples": False,
        "min_reported_time": 5,
    }
