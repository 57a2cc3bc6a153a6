"""Starts the watcher: `python -I -S .../watch/__main__.py FOLDER`."""

import importlib
import os
import sys

if __name__ == "__main__":
    # The package `watch`, from where it lies, and nothing above it: it is found without an
    # installation.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.exit(importlib.import_module("watch.program").main(sys.argv[1:]))
