"""How models/*.yaml are made: configurations as their makers publish them, through `perfmodel import`'s own code.

    python .ci/make_models.py            write models/ from tests/tables/hf_configs.jsonl and model_files.csv
    python .ci/make_models.py --check    say which files differ, write nothing

`hf_configs.jsonl` holds one published config.json a line, cut down to the keys that the importer reads, with its
Hugging Face id and where it was read. `model_files.csv` says which of them become files: name, title, aliases
(separated by blanks), whether the quantisation is left out ("plain": the file describes the unquantised model of the
same shape), and a note. Files that are not in the table (kimi-k2.5, kimi-k2.6, llama-3.1-8b, deepseek-v2-lite) are
written by hand.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from perfmodel.catalog.hf import raw_from_hf  # noqa: E402
from perfmodel.catalog.write import to_yaml  # noqa: E402

TABLES = ROOT / "tests" / "tables"


def configs() -> dict[str, dict[str, Any]]:
    """Hugging Face id -> published configuration."""
    lines = (TABLES / "hf_configs.jsonl").read_text().splitlines()
    return {entry["id"]: entry for entry in map(json.loads, lines)}


def rows() -> list[dict[str, str]]:
    """The files to be made."""
    with (TABLES / "model_files.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def plain(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration without its quantisation."""
    cut = {key: value for key, value in config.items() if key not in ("quantization_config", "expert_dtype")}
    return {key: plain(value) if key == "text_config" else value for key, value in cut.items()}


def text_of(row: dict[str, str], entry: dict[str, Any]) -> str:
    """YAML text of one file."""
    config, side = entry["config"], entry.get("quantization")
    if row["plain"]:
        config, side = plain(config), None
    raw = raw_from_hf(config, name=row["name"], hf_id=entry["id"], side=side)
    raw["title"] = row["title"]
    raw["aliases"] = row["aliases"].split()
    source = {"title": entry["title"], "url": entry["url"], "accessed": None}
    raw["sources"] = {"config": source | ({"note": entry["note"]} if entry.get("note") else {})}
    notes = [text for text in (row["note"], raw.pop("note", "")) if text]
    return to_yaml(raw | ({"note": "; ".join(notes)} if notes else {}))


def main() -> int:
    """Write the files, or compare them."""
    known, different = configs(), []
    for row in rows():
        path = ROOT / "models" / f"{row['name']}.yaml"
        text = text_of(row, known[row["config"]])
        if not path.is_file() or path.read_text() != text:
            different.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(text)
    print(f"{len(rows())} files, {len(different)} changed: {', '.join(different) or 'none'}")
    return 1 if different and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
