"""The command `twinrun`, and `python -m twinrun`."""

import sys


def main() -> None:
    """Loads the command line and runs it. Ctrl-C while it loads gives one line and status 2, as later on."""
    try:
        from .cli import main as run
    except KeyboardInterrupt:
        print("twinrun: interrupted: nothing was brought to its end", file=sys.stderr)
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
