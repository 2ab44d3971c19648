"""``perfmodel`` on the command line: parse, call, print. stdout is the answer, stderr the talk about it."""

from __future__ import annotations

try:
    import click

    from perfmodel import __version__
    from perfmodel.cli.group import Face
except KeyboardInterrupt:  # loading them is the longest part of a short command
    raise SystemExit(130) from None

FIRST = """perfmodel says before a launch what fits and how fast it runs. Ask first:

  Does it fit?
    perfmodel memory --model kimi-k2.6 --node 8x-rtx-pro-6000-server --tp 8
  Which strategy is fastest?
    perfmodel compare --model kimi-k2.6 --node 8x-rtx-pro-6000-server
  How long do 900,000 samples take?
    perfmodel job --model kimi-k2.6 --node 8x-rtx-pro-6000-server --tp 8 \\
        --kv-dtype fp8 --samples 900000 --input-tokens 200 --output-tokens 2500
  What is wrong with my launch?
    perfmodel doctor "vllm serve moonshotai/Kimi-K2.6 -tp 8" \\
        --node 8x-rtx-pro-6000-server
  One page to hand on?
    perfmodel report --model kimi-k2.6 --node 8x-rtx-pro-6000-server --tp 8 \\
        --kv-dtype fp8 -o kimi.html
  Which models, nodes and engines are known?
    perfmodel catalog

All commands: perfmodel --help"""

HELP = """Says before a launch what fits, how fast it runs, why, and how sure it is.

Every command takes --json and then prints the answer as JSON, units in the names. Exit code 0 is an answer, 1 is
the answer no, 2 is a question that is wrong."""


@click.group(
    cls=Face,
    help=HELP,
    invoke_without_command=True,
    subcommand_metavar="[COMMAND] [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)
@click.version_option(__version__, "-V", "--version", message="%(prog)s %(version)s")
@click.pass_context
def main(context: click.Context) -> None:
    """The console script."""
    if context.invoked_subcommand is None:
        click.echo(FIRST)
