"""`python -m lowtide` is the command `lowtide`."""

from __future__ import annotations

import sys

from lowtide.cli import main

if __name__ == "__main__":
    sys.exit(main())
