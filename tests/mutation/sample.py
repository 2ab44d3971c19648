"""The mutants of the three rooms, without those of texts, and a random sample of them, the same for the same seed."""

import ast
import random
from pathlib import Path

from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.utils.format_utils import get_mutant_name

ROOMS = ("costs", "placement", "engines")


def mutants(root: Path, room: str) -> dict[Path, list[str]]:
    """Names of the mutants of each file of a room, texts left out."""
    found = {}
    for path in sorted((root / "perfmodel" / room).glob("*.py")):
        inside = path.relative_to(root)
        bodies = {node.name: _meaning(node) for node in ast.walk(ast.parse(_mutated(root, inside)))
                  if isinstance(node, ast.FunctionDef) and "__mutmut_" in node.name}
        found[inside] = [get_mutant_name(inside, name) for name, body in bodies.items()
                         if body != bodies[f"{name.rpartition('__mutmut_')[0]}__mutmut_orig"]]
    return found


def _mutated(root: Path, inside: Path) -> str:
    """A file with its mutants: the one that mutmut wrote, if it is newer than the file, else made now."""
    made = root / "mutants" / inside
    if made.exists() and made.stat().st_mtime > (root / inside).stat().st_mtime:
        return made.read_text()
    return mutate_file_contents(str(inside), (root / inside).read_text()).code


def _meaning(function: ast.FunctionDef) -> str:
    """A function without its name, what its refusals say, and sentences (texts with a blank between words)."""
    for node in ast.walk(function):
        if isinstance(node, ast.Raise):
            node.exc = None
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            node.value = ""
    function.name = ""
    return ast.dump(function)


def sample(files: dict[Path, list[str]], size: int, seed: int) -> list[str]:
    """``size`` mutants of a room, from each file in proportion to what it has, at least one."""
    draw, every = random.Random(seed), sum(map(len, files.values()))
    chosen = []
    for _, names in sorted(files.items()):
        share = min(len(names), max(1, round(size * len(names) / every)))
        chosen += draw.sample(names, share)
    return chosen
