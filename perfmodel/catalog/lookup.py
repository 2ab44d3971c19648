"""Which file a name means. Case, organisation, separators do not count: `meta-llama/Llama-3.1-8B` is `llama3.1-8b`."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from perfmodel.catalog.yaml import parse_yaml, read_text
from perfmodel.errors import BadInput, DescriptorError, UnknownName, shown

MOST_NAME = 4096  # characters, as of a path

FOLDERS = {
    "model": "models",
    "node": "hardware/nodes",
    "accelerator": "hardware/accelerators",
    "fabric": "hardware/fabrics",
    "calibration": "hardware/calibrations",
    "observations": "hardware/observations",
}


def fold(name: str) -> str:
    """The letters and digits of a name without its organisation.

    >>> fold("meta-llama/Llama-3.1-8B") == fold("llama3.1-8b")
    True
    """
    return re.sub(r"[^a-z0-9+]", "", name.rpartition("/")[2].lower())


def roots() -> list[Path]:
    """Folders that hold `hardware/` and `models/`, nearest first: PERFMODEL_PATH, then the checkout or the wheel."""
    own = [Path(folder) for folder in os.environ.get("PERFMODEL_PATH", "").split(os.pathsep) if folder]
    checkout = Path(__file__).resolve().parents[2]
    in_checkout = (checkout / "pyproject.toml").is_file() and (checkout / "models").is_dir()
    return [*own, checkout if in_checkout else checkout / "perfmodel" / "_data"]


def files(kind: str) -> dict[str, Path]:
    """Folded file stem -> path of every file of a kind; no file is opened."""
    suffix = ".csv" if kind == "observations" else ".yaml"
    found: dict[str, Path] = {}
    for root in roots():
        folder = root / FOLDERS[kind]
        for path in sorted(folder.glob(f"*{suffix}")) if os.path.isdir(folder) else ():
            found.setdefault(fold(path.stem), path)
    return found


def names(kind: str) -> list[str]:
    """Every name of a kind: model, node, accelerator, fabric, calibration, observations."""
    if kind not in FOLDERS:
        raise UnknownName("kind of descriptor", kind, FOLDERS)
    return sorted(path.stem for path in files(kind).values())


def name_of(kind: str, value: Any) -> str:
    """A name or path as text; what can be neither is refused."""
    name = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(name, str) or len(name) > MOST_NAME or "\0" in name:
        raise BadInput(f"{'an' if kind[0] in 'ae' else 'a'} {kind} is named by text or a path, not {shown(value)}")
    if name.startswith(("./", "../", "/", "~")) and not is_path(name) and not os.path.exists(name):
        raise unknown(f"{kind}, nor a file or folder,", name)     # a path that is not there is no catalog name
    return name


def is_path(name: str) -> bool:
    """A name that ends like a file, or a folder that is there; anything else is looked up."""
    return name.lower().endswith((".yaml", ".yml", ".json", ".csv", ".gguf")) or _is_folder(name)


def _is_folder(name: str) -> bool:
    """Whether a name with a separator (or `.`) is a folder; a lone word is always a catalog name."""
    return (os.sep in name or name in (".", "..")) and os.path.isdir(name)


def find(kind: str, name: str) -> Path | None:
    """The file that a name means, by its stem and then by the aliases written in the files; None if there is none."""
    known, key = files(kind), fold(str(name))
    if key in known:
        return known[key]
    return next((path for path in known.values() if key and _has_alias(path, key)), None)


def unknown(kind: str, name: str) -> UnknownName:
    """The error for a name that `find` did not find."""
    return UnknownName(kind, name, names(kind.partition(",")[0]))


def _has_alias(path: Path, key: str) -> bool:
    """Whether a file lists an alias. Only its `aliases:` line is parsed, and only where the letters occur in it."""
    if path.suffix != ".yaml":
        return False
    try:
        listed = _ALIASES.search(read_text(path))
        if listed is None or key not in fold(listed[0].replace("/", "")):
            return False
        found = parse_yaml(listed[0], path.name).get("aliases") or []
    except DescriptorError:                 # a broken file is reported when it is asked for by its own name
        return False
    return isinstance(found, list) and key in (fold(alias) for alias in found if isinstance(alias, str))


_ALIASES = re.compile(r"^aliases:.*(?:\n[ \t-].*)*", re.MULTILINE)
