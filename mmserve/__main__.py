"""``python -m mmserve`` is ``mmserve``."""

import sys

from mmserve.cli.main import main

sys.exit(main())
