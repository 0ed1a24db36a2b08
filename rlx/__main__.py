"""`python -m rlx` is `rlx`."""

import sys

from rlx.tools.cli import main

sys.exit(main())
