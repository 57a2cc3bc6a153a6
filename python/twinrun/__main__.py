"""The command `twinrun`, and `python -m twinrun`."""

import sys


def main() -> None:
    """Loads the command line and runs it. Ctrl-C while it loads is told as later on: one line, status 2."""
    try:
        from .cli import main as run
    except KeyboardInterrupt:
        print("twinrun: interrupted: nothing was brought to its end", file=sys.stderr)
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
