"""Every flag that the engines' own parsers know, by version: ``flag_names.csv``, read off their sources.

vLLM 0.8.5, 0.9.2, 0.10.2, 0.11.2, 0.13.0, 0.14.1, 0.18.1, 0.20.0, 0.25.1, 0.28.0, 0.33.0 (engine/arg_utils.py and the
front end's cli_args.py); SGLang 0.4.10, 0.5.3, 0.5.6, 0.5.9, 0.5.10, 0.5.13, 0.5.15, 0.5.18, 0.5.20, 0.5.22, 0.5.23
(server_args.py, arg_groups/fields); TensorRT-LLM's main branch (commands/serve.py). ``since`` is the first of these
that has a flag (empty: the oldest has it), ``until`` the first that no longer has it (empty: the newest has it).
"""

from __future__ import annotations

import csv
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple


class FlagLife(NamedTuple):
    """One flag: what it takes (no, one, many, maybe) and the versions that know it."""

    flag: str
    takes: str
    since: str
    until: str


@lru_cache(maxsize=8)
def flag_lives(engine: str) -> tuple[FlagLife, ...]:
    """Flags of an engine.

    >>> next(life for life in flag_lives("sglang") if life.flag == "--attn-dp-size").since
    '0.5.22'
    """
    text = Path(__file__).with_suffix(".csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return tuple(FlagLife(r["flag"], r["takes"], r["since"], r["until"]) for r in rows if r["engine"] == engine)
