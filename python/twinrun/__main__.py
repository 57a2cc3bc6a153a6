"""The command `twinrun`, and `python -m twinrun`."""

import gc
import sys

from .streams import prepare


def main() -> None:
    """Loads the command line and runs it. Ctrl-C while it loads gives one line and status 2, as later on."""
    prepare()  # before anything opens a file
    # What is imported stays: looking for garbage after each 700 objects finds none. A small
    # comparison makes some 30,000 of them.
    gc.set_threshold(100_000)
    try:
        from .cli import main as run
    except KeyboardInterrupt:
        print("twinrun: interrupted before the work was done", file=sys.stderr)
        sys.exit(2)
    try:
        run()
    finally:
        # Python's shutdown would look for garbage among all objects, longer than a small comparison
        # takes
        gc.freeze()


if __name__ == "__main__":
    main()
