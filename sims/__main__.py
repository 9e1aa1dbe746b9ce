"""`python -m sims` is `fedcel`."""

import sys

from sims.cli import main

sys.exit(main())
