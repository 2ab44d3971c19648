"""``file:lengths.csv``: lengths from a column of numbers, or of text through a tokenizer file."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from perfmodel.errors import BadInput, UnknownName
from perfmodel.serving.lengths import Lengths, empirical
from perfmodel.serving.tables_in import rows, whole

# Columns that hold lengths in files of others: our own, Mooncake's, BurstGPT's, Azure's
ALSO = {
    "input_tokens": ("input_length", "prompt_tokens", "Request tokens", "ContextTokens", "prompt", "text"),
    "output_tokens": ("output_length", "completion_tokens", "Response tokens", "GeneratedTokens", "completion", "text"),
}
MOST_TEXT = 2**20  # characters of one text


def read_lengths(text: str, default: str = "output_tokens") -> Lengths:
    """The distribution in ``NAME[:COLUMN[:TOKENIZER.json]]``; ``default`` is the column where none is named."""
    name, _, rest = text.partition(":")
    column, _, tokenizer = rest.partition(":")
    if not name:
        raise BadInput("file: needs the name of a file, such as file:lengths.csv")
    words = f"file:{Path(name).name}" + (f":{column}" if column else "")
    counted = _counter(tokenizer) if tokenizer else None
    values: list[int] = []
    for number, row in enumerate(rows(name), start=1):
        if not column:
            column = _column(row, default, Path(name).name)
        if column not in row:
            raise UnknownName(f"column of {Path(name).name}", column, map(str, row))
        values.append(_length(row[column], f"{Path(name).name}, row {number}", column, counted))
    return empirical(values, words)


def _column(row: dict[str, Any], default: str, name: str) -> str:
    """The only column, or one with a name that stands for these lengths."""
    known = (default, *ALSO.get(default, ()))
    for column in known:
        if column in row:
            return column
    if len(row) == 1:
        return str(next(iter(row)))
    raise BadInput(f"{name} has no column {default}", [f"file:{name}:COLUMN, one of {', '.join(map(str, row))}"[:200]])


def _length(value: Any, where: str, column: str, counted: Any) -> int:
    if counted is not None:
        if not isinstance(value, str):
            raise BadInput(f"{where}: {column} is not text")
        return max(1, int(counted(value[:MOST_TEXT])))
    if isinstance(value, str) and value.strip() and not value.strip()[0].isdigit():
        raise BadInput(f"{where}: {column} is text", [f"file:NAME:{column}:tokenizer.json counts its tokens"])
    return whole(value, where, column)


def _counter(tokenizer: str) -> Any:
    """Counts the tokens of a text; the tokenizer comes from a file, never from a network."""
    try:
        tokenizers = import_module("tokenizers")
    except ImportError:
        raise BadInput("counting the tokens of text needs tokenizers", ["pip install 'perfmodel[files]'"]) from None
    if not Path(tokenizer).is_file():
        raise BadInput(f"{tokenizer}: no such tokenizer file")
    try:
        made = tokenizers.Tokenizer.from_file(tokenizer)
    except Exception as error:  # its own exception type has no name to import
        raise BadInput(f"{Path(tokenizer).name} is not a tokenizer: {str(error)[:120]}") from None
    return lambda text: len(made.encode(text).ids)

