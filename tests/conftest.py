"""What holds for every test: no display, no timing by chance."""

import os

from hypothesis import settings

os.environ.setdefault("MPLBACKEND", "Agg")
settings.register_profile("perfmodel", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("perfmodel")

collect_ignore = ["mutation"]  # run by `python -m tests.mutation`, with a tool of its own
