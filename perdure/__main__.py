"""The command `perdure`, also as `python -m perdure`."""

import os
import sys

from perdure.processes import openmp_defaults


def main() -> None:
    """The command line. To import what it needs takes a moment, in which Ctrl-C is no error, either."""
    try:
        os.environ.update(openmp_defaults())
        from perdure.cli.main import main as command_line
    except KeyboardInterrupt:
        print("perdure: interrupted", file=sys.stderr)
        sys.exit(130)
    command_line()


if __name__ == "__main__":
    main()
