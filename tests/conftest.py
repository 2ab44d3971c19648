"""What holds for every test: no display, no timing by chance, Ctrl-C that is heard."""

import os
import signal

from hypothesis import settings

os.environ.setdefault("MPLBACKEND", "Agg")
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets its background jobs ignore it
settings.register_profile("perfmodel", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("perfmodel")

collect_ignore = ["mutation"]  # run by `python -m tests.mutation`, with a tool of its own
