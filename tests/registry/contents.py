"""What is in the files that tests fetch."""

import random

SMALL = random.Random(1).randbytes(3_000_000)
LARGE = random.Random(2).randbytes(80_000_000)
"""Worth several connections."""
