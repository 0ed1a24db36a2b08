"""`python -m rlx.tools.opt` is `rlx-opt`."""

import sys

from rlx.tools.opt import main

sys.exit(main())
