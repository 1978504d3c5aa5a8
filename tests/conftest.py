"""For every test, wherever pytest runs: a shell's background job, for one, ignores Ctrl-C and so would its children."""

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
