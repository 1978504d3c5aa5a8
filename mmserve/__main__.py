"""``python -m mmserve`` is ``mmserve``."""

import sys

from mmserve.cli import main

sys.exit(main())
