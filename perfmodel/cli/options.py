"""The flags that commands share. One table for the keywords of `deploy`, read the same way in --strategy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import click

from perfmodel.errors import BadInput, UnknownName


class Keyword(NamedTuple):
    """A keyword of `deploy` as a flag. ``reads`` says how its text becomes a value."""

    name: str
    reads: str  # whole, number, watts, bytes, word, switch, wholes, words
    help: str


STRATEGY = (
    Keyword("tp", "whole", "tensor parallel: ranks of one stage of one engine copy"),
    Keyword("pp", "whole", "pipeline parallel: stages"),
    Keyword("ep", "whole", "expert parallel: divides tp; inside a group experts are split tp/ep ways"),
    Keyword("dp_attention", "whole", "attention groups: divides tp"),
    Keyword("dp", "whole", "independent engine copies behind a router"),
    Keyword("dcp", "whole", "decode context parallel: divides the attention group"),
    Keyword("layers_per_stage", "wholes", "layers of each stage, such as 7,7,7,8"),
)
SETTINGS = (
    Keyword("quantization", "word", "weights, where they are not what the model says: bf16, fp8, int4, nvfp4, ..."),
    Keyword("kv_dtype", "word", "KV cache: auto, bf16, fp8, ..."),
    Keyword("context", "whole", "what one sequence may hold (max_model_len, context-length) [tokens]"),
    Keyword("memory_fraction", "number", "the engine's own fraction, in its own meaning"),
    Keyword("max_sequences", "whole", "max_num_seqs, max_running_requests"),
    Keyword("prefill_chunk", "whole", "max_num_batched_tokens, chunked_prefill_size [tokens]"),
    Keyword("page_size", "whole", "KV page [tokens]"),
    Keyword("cuda_graphs", "switch", "decode in CUDA graphs"),
    Keyword("prefill_graphs", "switch", "prefill in (piecewise) CUDA graphs; else as the version does"),
    Keyword("max_graph_batch", "whole", "largest batch captured in a graph"),
    Keyword("max_micro_batch", "whole", "sequences of one pipeline slot, at most"),
    Keyword("async_depth", "whole", "micro-batches that the pipeline loop runs ahead"),
    Keyword("receive_interval", "whole", "decode steps between two looks for new requests (scheduler-recv-interval)"),
    Keyword("batch_wait_steps", "whole", "steps that prompts wait for others (batch_wait_timeout_iters)"),
    Keyword("batch_wait_ratio", "number", "share of prefill_chunk at which they wait no longer"),
    Keyword("attention_backend", "word", "attention kernels, in the engine's words"),
    Keyword("moe_backend", "word", "expert kernels, in the engine's words"),
    Keyword("all_reduce", "word", "which all-reduce the engine is told to use"),
    Keyword("nccl", "word", "NCCL: version or environment"),
    Keyword("power_limit", "watts", "power limit of a GPU [W]"),
    Keyword("kv_offload", "bytes", "host memory for KV, such as '64 GiB' [B]"),
    Keyword("speculative", "word", "METHOD:DRAFTS:ACCEPTANCE, such as eagle3:3:0.65 (docs/calibrate.md)"),
    Keyword("prefix_hit_rate", "number", "share of a prompt found in the prefix cache, 0 to below 1"),
    Keyword("expert_skew", "number", "how unevenly experts are picked"),
    Keyword("prompts", "word", "random, or identical on all streams"),
    Keyword("patches", "words", "changes to the stock engine that are taken as made, such as pp"),
    Keyword("calibration", "word", "name or file of a calibration; else the nearest shipped one"),
)
KEYWORDS = {keyword.name: keyword for keyword in (*STRATEGY, *SETTINGS)}
METAVAR = {
    "whole": "N",
    "number": "X",
    "watts": "W",
    "bytes": "SIZE",
    "word": "NAME",
    "wholes": "N,N,...",
}


class Flag(click.Option):
    """An option that knows under which heading of the help it stands."""

    def __init__(self, *arguments: Any, section: str = "Options", **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.section = section


class Question(click.Command):
    """A command whose help lists its options under headings, and its examples last."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """An option that takes one value and is given twice: the last counts, as everywhere, and that is said."""
        said_again = [name for name in _given_again(self.params, args) if not ctx.resilient_parsing]
        found = super().parse_args(ctx, args)
        for name in said_again:
            click.echo(f"warning: {name} is given more than once; the last one counts", err=True)
        return found

    def get_help_option_names(self, ctx: click.Context) -> list[str]:
        """Both names, whether it runs under the group or by itself; click remembers the first answer."""
        return ["-h", "--help"]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                sections.setdefault(getattr(parameter, "section", "Output"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records, col_max=26)


def _given_again(params: Iterable[click.Parameter], args: list[str]) -> list[str]:
    """Options of one value that stand there several times."""
    once = {name: option.opts[0] for option in params
            if isinstance(option, click.Option) and not option.multiple and not option.is_flag and option.nargs == 1
            for name in option.opts}
    words: list[str] = []
    rest = iter(args)
    for word in rest:
        if word == "--":
            break
        name, equals, _ = word.partition("=")
        if name in once:
            words.append(once[name])
            if not equals:
                next(rest, None)
    return [name for name in dict.fromkeys(words) if words.count(name) > 1]


def examples(*lines: str) -> str:
    r"""Epilog of a help text: commands, each broken over lines as a shell reads it; ``\`` at an end continues one.

    >>> examples("perfmodel catalog \\", "    --json").splitlines()[1:]
    ['Examples:', '  perfmodel catalog --json']
    """
    calls = "\n".join(lines).replace("\\\n", " ").splitlines()
    return "\n".join(["\b", "Examples:", *(line for call in calls for line in _broken(call))])


def _broken(call: str, width: int = 74) -> list[str]:
    """One command over lines of at most ``width`` columns; a flag stays with its value, quotes stay whole."""
    words = re.findall(r"""(?:[^\s"']|"[^"]*"|'[^']*')+""", call)
    lines = [""]
    for i, word in enumerate(words):
        following = f" {words[i + 1]}" if word.startswith("-") and i + 1 < len(words) and words[i + 1][0] != "-" else ""
        if lines[-1] and len(lines[-1]) + len(word) + len(following) + 3 > width:
            lines.append("    ")
        lines[-1] += word if not lines[-1].strip() else f" {word}"
    return [f"  {line} \\" for line in lines[:-1]] + [f"  {lines[-1]}"]


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _stacked(options: Iterable[Decorator]) -> Decorator:
    """Several decorators as one, the first on top."""
    upwards = list(options)[::-1]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in upwards:
            function = option(function)
        return function

    return decorate


def flag(*names: str, section: str, **settings: Any) -> Decorator:
    """One option under a heading."""
    return click.option(*names, cls=Flag, section=section, **settings)


def _complete(kind: str) -> Callable[..., list[str]]:
    def candidates(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        from perfmodel.catalog import names

        return [name for name in names(kind) if name.startswith(incomplete)]

    return candidates


def _keyword_flag(keyword: Keyword, section: str) -> Decorator:
    dashed = keyword.name.replace("_", "-")
    if keyword.reads == "switch":
        return flag(f"--{dashed}/--no-{dashed}", keyword.name, default=None, help=keyword.help, section=section)
    if keyword.reads == "words":
        return flag(f"--{dashed}", keyword.name, multiple=True, metavar="NAME", help=keyword.help, section=section)
    return flag(f"--{dashed}", keyword.name, metavar=METAVAR[keyword.reads], help=keyword.help, section=section)


MODEL = flag("--model", required=True, metavar="NAME", section="What", help="catalog name, Hugging Face id, or YAML",
             shell_complete=_complete("model"))  # fmt: skip
NODE = flag("--node", required=True, metavar="NAME", section="What", help="catalog name, YAML, or Nx-<accelerator>",
            shell_complete=_complete("node"))  # fmt: skip
ENGINE = flag("--engine", default="vllm", show_default=True, metavar="NAME", section="What",
              help="vllm, sglang or tensorrt-llm; with ==version, else the newest known")  # fmt: skip
JSON = flag("--json", "as_json", is_flag=True, section="Output", help="print the answer as JSON")
BRIEF = flag("--brief", is_flag=True, section="Output", help="only the answer: no parts, commands or assumptions")
PLOT = flag("--plot", metavar="FILE", section="Output", help="draw the answer into FILE (.png, .svg or .pdf)")


def picture_flag(*kinds: str) -> Decorator:
    """--picture, for answers that can be drawn in several ways; the first is the default."""
    words = "what --plot draws; else the first of these"
    return flag("--picture", type=click.Choice(kinds), section="Output", help=words)


MEASURED = flag("--measured", metavar="FILE.csv", section="Output",
                help="set measured points beside the answer: columns concurrency and output_tok_s, or metric and "
                "value; columns such as engine, tp, cuda_graphs, isl pick the rows of the same conditions")  # fmt: skip

strategy_flags = _stacked(_keyword_flag(keyword, "Strategy") for keyword in STRATEGY)
settings_flags = _stacked(_keyword_flag(keyword, "Engine settings") for keyword in SETTINGS)
deployment_flags = _stacked([MODEL, NODE, ENGINE, strategy_flags, settings_flags])
# The workload, one flag each: commands that differ from `workload_flags` take those that they know.
INPUT_TOKENS = flag("--input-tokens", default="1024", show_default=True, metavar="LENGTH", section="Workload",
                    help="a number, uniform:LOW:HIGH, lognormal:MEAN:SIGMA, falling:MEAN or "
                    "file:NAME[:COLUMN]", callback=lambda *given: _length(*given))  # fmt: skip
OUTPUT_TOKENS = flag("--output-tokens", default="1024", show_default=True, metavar="LENGTH", section="Workload",
                     help="the same of the answers", callback=lambda *given: _length(*given))  # fmt: skip
PRICE = flag("--price-per-gpu-hour", type=float, metavar="MONEY", section="Money", help="of one GPU, for the cost")


def concurrency_flag(default: str | None = "1,8,32,128", metavar: str = "N,N,...",
                     words: str = "requests in flight over the whole deployment") -> Decorator:  # fmt: skip
    """--concurrency; how many values it takes and what it is without one differs between commands."""
    return flag("--concurrency", default=default, show_default=default is not None, metavar=metavar, section="Workload",
                help=words)  # fmt: skip


def arrival_flag(default: str | None = None,
                 words: str = "default: burst; staggered for TensorRT-LLM") -> Decorator:  # fmt: skip
    """--arrival."""
    return flag("--arrival", type=click.Choice(["burst", "staggered"]), default=default,
                show_default=default is not None, section="Workload",
                help=f"how a pipeline's slots are filled; {words}")  # fmt: skip


workload_flags = _stacked([concurrency_flag(), INPUT_TOKENS, OUTPUT_TOKENS, arrival_flag()])


def said(name: str) -> bool:
    """Whether this flag was given, even with its default."""
    return click.get_current_context().get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def deployment_keywords(given: dict[str, Any]) -> dict[str, Any]:
    """Values of the flags of `deploy` that were given, read from their text."""
    present = {name: given[name] for name in KEYWORDS if given.get(name) not in (None, ())}
    return {name: value(KEYWORDS[name], text) for name, text in present.items()}


def value(keyword: Keyword, text: Any) -> Any:
    """The text of a flag as `deploy` takes it; a range is checked there."""
    name = keyword.name.replace("_", "-")
    if keyword.reads == "words":
        return tuple(word for piece in ([text] if isinstance(text, str) else text) for word in piece.split(",") if word)
    if keyword.reads == "wholes":
        return tuple(whole(name, piece) for piece in text.split(","))
    if keyword.reads == "whole":
        return whole(name, text)
    if keyword.reads == "switch" and not isinstance(text, bool):
        return _switch(name, text)
    if keyword.reads in ("number", "watts", "bytes"):
        return quantity(name, text, {"watts": "W", "bytes": "B"}.get(keyword.reads))
    return text


def numbers(name: str, text: str) -> list[float]:
    """A list of numbers such as ``1,8,32``."""
    try:
        return [quantity(name, piece, None) for piece in text.split(",")]
    except BadInput:
        raise BadInput(f"{name} must be numbers with commas between them, not {text[:80]!r}",
                       [f"--{name.replace('_', '-')} {_as_list(text)}"]) from None


def _as_list(text: str) -> str:
    """What was probably meant: a range by doubling, words with commas between.

    >>> _as_list("1-8"), _as_list("1 4 8"), _as_list("3..10"), _as_list("x")
    ('1,2,4,8', '1,4,8', '3,6,10', '1,8,32')
    """
    ends = re.fullmatch(r"\s*(\d{1,6})\s*(?:-|:|\.\.\.?|to)\s*(\d{1,6})\s*", text[:80])
    if ends and 0 < int(ends[1]) < int(ends[2]):
        low, high = int(ends[1]), int(ends[2])
        return ",".join(str(n) for n in (*(low * 2**k for k in range(20) if low * 2**k < high), high))
    pieces = re.split(r"[\s,;]+", text.strip()[:200])
    return ",".join(pieces) if all(re.fullmatch(r"[0-9.]{1,12}", piece) for piece in pieces) else "1,8,32"


def quantity(name: str, text: str, unit: str | None) -> float:
    """A number, with a unit where the flag has one."""
    from perfmodel.units import parse

    text = text.strip().replace("_", "")
    if close := re.fullmatch(r"([0-9.]{1,30}(?:[eE][+-]?[0-9]{1,3})?)((?![eE][+-]?[0-9])[A-Za-z%].{0,30})", text):
        text = f"{close[1]} {close[2]}"      # a space between number and unit is the file's rule, not the shell's
    try:
        return parse(text)
    except ValueError:
        if unit is None:
            raise BadInput(f"{name} must be a number, not {text[:80]!r}") from None
    try:
        return parse(text, unit)
    except ValueError as error:
        raise BadInput(f"{name}: {error}") from None


def duration(name: str, text: str) -> float:
    """Seconds of a text such as ``90 min``, ``12h``, ``7d`` or a bare number of seconds.

    >>> duration("deadline", "7d"), duration("deadline", "1.5 h")
    (604800.0, 5400.0)
    """
    found = re.fullmatch(r"([0-9._eE+]{1,30}) ?(s|sec|min|h|d|days|w)?", text.strip())
    try:
        return float(found[1].replace("_", "")) * _SECONDS[found[2] or "s"]  # type: ignore[index]
    except (TypeError, ValueError):
        raise BadInput(f"{name} must be a time such as 90 min, 12h or 7d, not {text[:80]!r}") from None


_SECONDS = {"s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "days": 86400.0, "w": 604800.0}


def whole(name: str, text: str) -> int:
    """A whole number of at most 40 digits; a longer one is refused, not cut."""
    try:
        if len(text.strip()) <= 40:
            return int(text)
    except ValueError:
        pass
    raise BadInput(f"{name} must be a whole number, not {text[:80]!r}", _thousands(text))


def _thousands(text: str) -> list[str]:
    """A hint for ``8k``: engines take it for 8,000 or for 8,192.

    >>> _thousands("8k"), _thousands("x")
    (['write 8192 or 8000'], [])
    """
    found = re.fullmatch(r"\s*(\d{1,6})[kK]\s*", text[:20])
    return [f"write {int(found[1]) * 1024} or {int(found[1]) * 1000}"] if found else []


class Count(click.ParamType):
    """How many: ``900000``, ``900_000``, ``900,000``, ``9e5``, ``900k`` or ``1.5M``; thousands are 1,000 here."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"\s*([0-9._,]{1,30}(?:[eE][0-9]{1,2})?)\s*([kKmM]?)\s*", str(value))
        try:
            number = float(found[1].replace("_", "").replace(",", "")) if found else -1.0
        except ValueError:
            number = -1.0
        number *= {"": 1.0, "k": 1e3, "m": 1e6}[found[2].lower() if found else ""]
        if not 0 <= number < 1e15 or number != int(number):
            self.fail(f"{str(value)[:80]!r} is not a count such as 900000, 9e5 or 900k", param, ctx)
        return int(number)


def _length(ctx: click.Context, param: click.Parameter, text: str) -> str:
    """A length as it is, but for ``4k``, which could be either."""
    if isinstance(text, str) and (hints := _thousands(text)):
        raise BadInput(f"{(param.name or '').replace('_', '-')} must be a number of tokens, not {text[:20]!r}", hints)
    return text


def _switch(name: str, text: str) -> bool:
    words = {"on": True, "true": True, "yes": True, "1": True, "off": False, "false": False, "no": False, "0": False}
    if text.lower() not in words:
        raise BadInput(f"{name} must be on or off, not {text[:80]!r}")
    return words[text.lower()]


def strategy(text: str) -> dict[str, Any]:
    """Keywords of `deploy` from ``tp=8,ep=8``; a piece without ``=`` continues the list before it.

    >>> strategy("tp=1,pp=2,layers-per-stage=30,31,cuda_graphs=off")
    {'tp': 1, 'pp': 2, 'layers_per_stage': (30, 31), 'cuda_graphs': False}
    """
    pieces: dict[str, str] = {}
    last = ""
    for piece in text.split(","):
        name, equals, rest = piece.partition("=")
        if equals:
            last = name.strip().replace("-", "_")
            if last in pieces:
                raise BadInput(f"strategy {text!r} says {last} twice")
            if last not in KEYWORDS and last != "engine":
                raise UnknownName("keyword in a strategy", name.strip(), (*KEYWORDS, "engine"))
            pieces[last] = rest.strip()
        elif last and KEYWORDS.get(last, Keyword("", "", "")).reads in ("wholes", "words"):
            pieces[last] += f",{piece.strip()}"
        else:
            raise BadInput(f"strategy {text!r}: {piece!r} has no '='", hints=['write --strategy "tp=8,ep=8"'])
    return {name: given if name == "engine" else value(KEYWORDS[name], given) for name, given in pieces.items()}
