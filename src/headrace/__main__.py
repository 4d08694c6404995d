"""``python -m headrace``: the command line."""

import sys

from headrace_command import main

if __name__ == "__main__":
    sys.exit(main())
