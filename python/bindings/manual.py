"""Writes the manual pages while the package is built.

Its module lies in the build folder then, and the rest in the sources.

    python manual.py PYTHON_SOURCES FOLDER_OF_THE_MODULE PAGES
"""

import sys

sources, module, folder = sys.argv[1:]
sys.path.insert(0, sources)
import twinrun  # noqa: E402

twinrun.__path__.append(module)
from twinrun.cli import main  # noqa: E402

main(["manual", folder])
