"""The shell around all commands: loads the one that is asked for, turns errors into one line and an exit code."""

from __future__ import annotations

import os
import re
import sys
from _thread import interrupt_main
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from threading import Timer
from typing import Any, NoReturn

import click

from perfmodel.errors import PerfModelError
from perfmodel.errors import one_line as on_one_line

# command -> the module in this folder that has a click command of that name; a line counts once its module is there
COMMANDS = {
    "memory": "memory",
    "predict": "predict",
    "simulate": "simulate",
    "compare": "compare",
    "step": "step",
    "prefill": "step",
    "collective": "collective",
    "plan": "plan",
    "job": "job",
    "calibrate": "calibrate",
    "validate": "validate",
    "explain": "explain",
    "whatif": "whatif",
    "doctor": "doctor",
    "probe": "probe",
    "catalog": "catalog",
    "import": "import_",
    "report": "report",
    "schema": "schema",
    "ui": "ui",
}
INTERRUPTED, BROKEN_PIPE = 130, 141  # as a shell counts SIGINT and SIGPIPE


class Commands(click.Group):
    """Group that names the nearest commands when one is not there."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            raise click.UsageError(self.no_such(name, self.list_commands(ctx)), ctx)
        return super().resolve_command(ctx, args)

    def no_such(self, name: str, known: Sequence[str]) -> str:
        """What is wrong with this name."""
        return f"no such command {name!r}{nearest(name, known)}"


class Face(Commands):
    """Group of commands, each imported when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in COMMANDS if self.get_command(ctx, name)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS.get(cmd_name)
        if module is None or not Path(__file__).with_name(f"{module}.py").is_file():
            return None
        found = getattr(import_module(f"perfmodel.cli.{module}"), cmd_name.replace("import", "import_"), None)
        return found if isinstance(found, click.Command) else None

    def no_such(self, name: str, known: Sequence[str]) -> str:
        return f"perfmodel {name} is not built yet" if name in COMMANDS else super().no_such(name, known)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            try:
                return super().invoke(ctx)
            finally:
                if sys.stdout:  # None where the shell closed it
                    sys.stdout.flush()
        except BrokenPipeError:  # the reader left; what is still buffered goes nowhere, quietly
            _drop_output()
            ctx.exit(BROKEN_PIPE)

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command line; PerfModelError and usage errors become one line on stderr, a bug keeps its traceback."""
        extra = {"prog_name": "perfmodel", **extra}
        run: Any = super().main
        if not extra.pop("standalone_mode", True):
            return run(*args, standalone_mode=False, **extra)
        try:
            with interrupts_that_come_again():
                code = run(*args, standalone_mode=False, **extra)
        except PerfModelError as error:
            stop(error.message, [*error.hints, *meant_as_path(error.message)], error.exit_code)
        except click.NoSuchOption as error:
            known = [word for option in error.ctx.command.params for word in spellings(option)] if error.ctx else []
            ours = of_an_engine(error.option_name, known)
            meant = f"; here it is {ours}" if ours else nearest(error.option_name, known)
            stop(f"no such option {error.option_name}{meant}", help_hint(error.ctx), 2)
        except click.MissingParameter as error:
            named = getattr(error.param, "name", "") in ("model", "node")
            where = ["perfmodel catalog lists the names"] if named else []
            stop(one_line(error.format_message()), [*help_hint(error.ctx), *where], 2)
        except click.UsageError as error:
            stop(one_line(error.format_message()), help_hint(error.ctx), 2)
        except click.ClickException as error:
            stop(one_line(error.format_message()), (), error.exit_code)
        except (click.Abort, KeyboardInterrupt):
            sys.exit(INTERRUPTED)
        except OSError as error:  # a full disk, a file that cannot be reached: the machine's, not a bug
            _drop_output()
            stop(f"{error.filename or 'the answer'}: {(error.strerror or str(error)).lower()}", (), 2)
        sys.exit(code if isinstance(code, int) else 0)


@contextmanager
def interrupts_that_come_again() -> Iterator[None]:
    """Ctrl-C inside a destructor or a callback, where Python can only print it, comes again outside of that."""
    before = sys.unraisablehook

    def seen(what: Any) -> None:
        if what.exc_type is KeyboardInterrupt:
            Timer(0.01, interrupt_main).start()
        else:
            before(what)

    sys.unraisablehook = seen
    try:
        yield
    finally:
        sys.unraisablehook = before


def _drop_output() -> None:
    """What is still buffered for stdout goes nowhere, quietly."""
    with suppress(OSError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def stop(message: str, hints: Iterable[str], code: int) -> NoReturn:
    """Say what is wrong in one line, what may help below, and leave."""
    from perfmodel.cli.output import as_flags

    lines = [f"error: {message}", *(f"hint: {as_flags(hint)}" for hint in hints)]
    with suppress(OSError):  # nobody can be told
        click.echo("\n".join(map(on_one_line, lines)), err=True)
    sys.exit(code)


def meant_as_path(message: str) -> list[str]:
    """A hint where an unknown name is that of a file or folder here."""
    found = re.match(r"unknown (?:model|node|accelerator|calibration) '([\w.-]{1,200})'", message)
    return [f"a path has a slash in it: ./{found[1]}"] if found and Path(found[1]).exists() else []


def one_line(text: str) -> str:
    """click's message in our form: one line, small letter, no full stop.

    >>> one_line("Missing option '--model'.")
    "missing option '--model'"
    """
    text = " ".join(text.split()).rstrip(".")
    return text[:1].lower() + text[1:]


def nearest(word: str, known: Iterable[str]) -> str:
    """``; did you mean --tp`` with up to three known words, or nothing.

    >>> nearest("--tpp", ["--tp", "--pp", "--json"])
    '; did you mean --tp, --pp'
    """
    from difflib import get_close_matches

    near = get_close_matches(word, list(known), n=3, cutoff=0.6)
    return f"; did you mean {', '.join(near)}" if near else ""


_BENCHMARK = {  # words of the engines' benchmarks
    "--isl": "--input-tokens", "--input-len": "--input-tokens", "--random-input-len": "--input-tokens",
    "--osl": "--output-tokens", "--output-len": "--output-tokens", "--random-output-len": "--output-tokens",
    "--max-concurrency": "--concurrency", "--batch-size": "--batch", "--num-prompts": "--requests",
    "--t": "--tp", "--p": "--pp", "--d": "--dp", "--cuda-graph": "--cuda-graphs", "--backend": "--engine",
}  # fmt: skip


def of_an_engine(word: str, known: Sequence[str]) -> str:
    """Our option for a flag of an engine or of its benchmark, if the command has it; else nothing.

    >>> of_an_engine("--tensor-parallel-size", ["--tp", "--pp"]), of_an_engine("--isl", ["--input-tokens"])
    ('--tp', '--input-tokens')
    >>> of_an_engine("--enforce-eager", ["--cuda-graphs", "--no-cuda-graphs"])
    '--no-cuda-graphs'
    """
    from perfmodel.engines import sglang_flags, tensorrt_llm_flags, vllm_flags

    plain = f"--{word.lstrip('-').replace('_', '-')}"
    found = _BENCHMARK.get(plain, "")
    for flag in (*vllm_flags.READ, *sglang_flags.FLAGS, *tensorrt_llm_flags.FLAGS):
        if not found and flag.keyword and plain in [f"--{name.lstrip('-').replace('_', '-')}" for name in flag.names]:
            found = f"--{'no-' if flag.kind == 'false' else ''}{flag.keyword.replace('_', '-')}"
    return found if found in known else ""


def spellings(option: click.Parameter) -> list[str]:
    """Every way to write an option."""
    return [*option.opts, *option.secondary_opts]


def help_hint(ctx: click.Context | None) -> list[str]:
    """Where to read more."""
    return [f"{ctx.command_path} --help"] if ctx else []
