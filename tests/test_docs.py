"""The documents keep their word: links lead somewhere, examples run, commands and flags exist."""

import doctest
import re
import shlex
from pathlib import Path

import click
import pytest
from command_line import ask

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

if not (ROOT / "perfmodel" / "__init__.py").is_file():
    pytest.skip("documents are read in the checkout; the wheel has none", allow_module_level=True)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def fences(text: str, *languages: str) -> list[tuple[int, str]]:
    """(line number, text) of fenced blocks in a language."""
    return [
        (text[: found.start(2)].count("\n"), found[2])
        for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
        if found[1] in languages
    ]


def prose(text: str) -> str:
    """A page without its code."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))


def anchors(text: str) -> set[str]:
    """Headings as GitHub names them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text())):
        if re.match(r"https?:|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{target} leads nowhere"
        assert there.is_relative_to(ROOT), f"{target} leaves the project"
        if anchor:
            assert anchor in anchors(there.read_text()), f"{target}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_python_examples_run(page: Path) -> None:
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE, verbose=False)
    names: dict[str, object] = {}  # the blocks of a page share their names, as a reader would type them
    said: list[str] = []
    for line, code in fences(page.read_text(), "python", "pycon"):
        if ">>>" not in code:
            compile(code, name(page), "exec")
            continue
        example = doctest.DocTestParser().get_doctest(code, names, name(page), name(page), line)
        runner.run(example, out=said.append, clear_globs=False)
        names = example.globs
    assert not runner.failures, "".join(said)


def command_lines(text: str) -> list[list[str]]:
    """Every call of perfmodel in shell blocks and in `code`, as words."""
    blocks = [code.replace("\\\n", " ") for _, code in fences(text, "sh", "bash", "console", "")]
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))
    calls = [
        shlex.split(call, comments=True)
        for line in [*"\n".join(blocks).splitlines(), *spans]
        for call in re.findall(r"(?:^|&& |\$ |bin/)(perfmodel [^|&;>]*)", line.strip())
    ]
    return [call for call in calls if len(call) > 1 and call[1].isalpha()]


def shown(text: str) -> list[tuple[list[str], list[str]]]:
    """(words of a call, lines of the answer that the page shows below it) for every pair of sh and text blocks."""
    pairs = re.findall(r"^```sh\n([^`]*)^```\n\n```text\n([^`]*)^```$", text, re.M)
    return [(calls[-1], answer.splitlines()) for call, answer in pairs if (calls := command_lines(f"```sh\n{call}```"))]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_answers_are_those_of_the_program(page: Path) -> None:
    for call, lines in shown(page.read_text()):
        answer = iter(ask(*call[1:]).stdout.splitlines())
        for line in lines:
            assert line == "..." or line in answer, f"{' '.join(call)} does not answer, in this place: {line!r}"


def spellings(command: click.Command) -> set[str]:
    return {"--help", *(word for option in command.params for word in (*option.opts, *option.secondary_opts))}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_and_flags_exist(page: Path) -> None:
    from perfmodel.cli import main

    assert isinstance(main, click.Group)
    context = click.Context(main)
    for call in command_lines(page.read_text()):
        command = main.get_command(context, call[1])
        assert command is not None, f"no such command: {' '.join(call)}"
        if isinstance(command, click.Group) and len(call) > 2:  # a command of a command
            command = command.get_command(context, call[2]) or command
        flags = {word.partition("=")[0] for word in call[2:] if word.startswith("--")}
        assert flags <= spellings(command), f"{' '.join(call)}: no such flag {flags - spellings(command)}"


def test_every_command_has_help_and_is_documented() -> None:
    from perfmodel.cli import main

    context = click.Context(main)
    pages = "\n".join(page.read_text() for page in PAGES)
    for word in main.list_commands(context):
        command = main.get_command(context, word)
        assert command is not None
        assert command.help, f"perfmodel {word} has no help"
        assert f"perfmodel {word}" in pages, f"perfmodel {word} is in no document"


def test_theory_names_what_exists() -> None:
    from dataclasses import fields

    from perfmodel.engines.options import Options
    from perfmodel.step.factors import NAMES

    theory = (ROOT / "docs/theory.md").read_text()
    formulas: set[str] = set()
    for path in sorted((ROOT / "perfmodel/costs").glob("[a-z]*.py")):
        assert path.stem == "dispatch" or f"`costs/{path.name}`" in theory, f"docs/theory.md does not name {path.name}"
        formulas |= set(re.findall(r"^def ([a-z]\w*)", path.read_text(), re.M))
    named = set(re.findall(r"`([a-z]\w*_\w+)`", theory))
    assert named - formulas - {*NAMES, *(f.name for f in fields(Options)), "routing_concentration"} == set()
    assert len(named & formulas) > 20


def test_nomenclature_names_every_factor() -> None:
    from perfmodel.step.factors import NAMES

    words = (ROOT / "docs/nomenclature.md").read_text()
    assert [factor for factor in NAMES if f"`{factor}`" not in words] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_placeholder_is_left(page: Path) -> None:
    assert "TODO" not in page.read_text()


def test_readme_opens_with_the_two_commands() -> None:
    first = fences((ROOT / "README.md").read_text(), "sh")[0][1].splitlines()
    assert len(first) == 2
    assert first[0].startswith("pip install . && perfmodel memory ")
    assert first[1].endswith("pytest -n auto")


def test_the_readers_see_what_they_should() -> None:
    page = "# A `b` c\n`perfmodel memory --tp 8`\n```sh\nx && perfmodel predict \\\n  --pp 2 | y\n```\n[t](u.md#v)\n"
    assert command_lines(page) == [["perfmodel", "predict", "--pp", "2"], ["perfmodel", "memory", "--tp", "8"]]
    assert anchors(page) == {"a-b-c"}
    assert fences(page, "python") == []
    assert shown("```sh\nperfmodel step --tp 8\n```\n\n```text\na\n...\nb\n```\n") == [
        (["perfmodel", "step", "--tp", "8"], ["a", "...", "b"])
    ]
