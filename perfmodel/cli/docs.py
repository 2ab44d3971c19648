"""docs/cli.md from the help of the commands: ``python -m perfmodel.cli.docs docs/cli.md``.

docs/json.md and docs/schemas/ from the types of what they print: ``python -m perfmodel.cli.docs docs/json.md``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from perfmodel.cli import main

INTRODUCTION = """# Command line

Made by `python -m perfmodel.cli.docs docs/cli.md` from the help of the commands; change it there.

* stdout is the answer, with the assumptions it rests on; stderr is the talk: warnings, hints, refused strategies.
* `--json` prints the same as `.to_dict()` in Python. Numbers are finite or null, units are in the names.
* Exit codes: 0 an answer, 1 the answer is no (`perfmodel memory` of what does not fit), 2 the question is wrong.
* Flags are the keywords of `pm.deploy` with dashes; a keyword that is left out takes the engine's own default, and the
  answer says which.
* A model or node is a name of the catalog or the path of a YAML file. Folders in `PERFMODEL_PATH` are searched first.
* Text is plain: no colour, at most 80 columns. `--plot` needs no display.
* Completion of commands, flags and names comes with click. For bash, zsh and fish, in this order:

```sh
eval "$(_PERFMODEL_COMPLETE=bash_source perfmodel)"
eval "$(_PERFMODEL_COMPLETE=zsh_source perfmodel)"
_PERFMODEL_COMPLETE=fish_source perfmodel | source
```
"""


def commands(group: click.Group, context: click.Context) -> Iterator[click.Context]:
    """A context for every command below a group, in the order of its help."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        yield inner
        if isinstance(command, click.Group):
            yield from commands(command, inner)


def page() -> str:
    """The whole page."""
    root = click.Context(main, info_name="perfmodel", terminal_width=80, **main.context_settings)
    pieces = [INTRODUCTION]
    for context in (root, *commands(main, root)):
        pieces.append(f"## {context.command_path}\n\n```text\n{context.get_help()}\n```\n")
    return "\n".join(pieces)


if __name__ == "__main__":
    from pathlib import Path

    from perfmodel.cli import docs_json

    target = Path(sys.argv[1])
    if target.name == "json.md":
        for file, text in docs_json.files().items():
            (target.parent / file).parent.mkdir(exist_ok=True)
            (target.parent / file).write_text(text, encoding="utf-8")
    else:
        target.write_text(page(), encoding="utf-8")
