"""Text as a shell reads it -> the words that start a server, those before it, and the settings around them.

Hostile until read: nothing is run, no variable of the caller's shell is looked up, sizes and nesting are bounded.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from perfmodel.errors import BadInput

MOST_CHARACTERS, MOST_WORDS, MOST_NESTED = 65_536, 2_000, 4
MODULES = {"vllm.entrypoints.openai.api_server": "vllm", "vllm.entrypoints.api_server": "vllm",
            "vllm.entrypoints.cli.main": "vllm", "sglang.launch_server": "sglang"}
_OPERATORS = ("&&", "||", "|", ";", "&", ">", ">>", "<", "2>&1", "&>", "1>", "2>")
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::?-([^}]*))?\}|\(([A-Za-z_]\w*)\))")
_NOT_HYPHENS = "\u2010\u2011\u2012\u2013\u2014\u2212"
Start = tuple[str, list[str], list[str]]        # engine, words before its program, words after it


def logical_line(text: str, environment: dict[str, str]) -> tuple[str, dict[str, str]]:
    """The logical line that starts a server; ``export`` lines before it are kept as settings."""
    if len(text) > MOST_CHARACTERS:
        raise BadInput(f"the command is longer than {MOST_CHARACTERS:,} characters")
    lines = [line for line in re.sub(r"\\[ \t]*\r?\n", " ", text).splitlines()
             if line.strip() and not line.lstrip().startswith("#")]
    if len(lines) < 2:
        return (lines[0] if lines else ""), environment
    for line in lines:
        try:
            words = shell_split(line)
        except BadInput:                    # a quote spans lines: the text is one command
            return text, environment
        if start_of(words, "") is not None or any(engine_of_image(word) for word in words):
            return line, environment
        environment |= settings_in(words)
    return lines[0], environment


def slips(text: str) -> list[str]:
    """What a shell would read in another way than it was meant."""
    notes = []
    if re.search(r"\\[ \t]+\r?\n", text):
        notes.append("a space follows a backslash at the end of a line: a shell ends the command there")
    joined = re.sub(r"\\[ \t]*\r?\n", " ", text)
    comment = next((match for line in joined.splitlines() if not line.lstrip().startswith("#")
                    and (match := re.search(r"\s#(?! --config:| weights: )[^\"']* --\w[^\"']*$", line))), None)
    if comment:
        notes.append("a # inside the command: a shell reads nothing after it")
    if re.search(rf"(?:^|\s)[{_NOT_HYPHENS}]\w", text):
        notes.append("a dash that is no hyphen stands where a flag begins: the engine takes it for a word")
    if re.search("[\u2018\u2019\u201c\u201d]", text):
        notes.append("curly quotes: a shell takes them for letters")
    return notes


def shell_split(text: str) -> list[str]:
    """Words as a shell splits them; a text that a shell would refuse is refused."""
    try:
        words = shlex.split(text, comments=True)
    except ValueError as problem:
        raise BadInput(f"the command does not read as a shell line: {problem}") from None
    if len(words) > MOST_WORDS:
        raise BadInput(f"the command has more than {MOST_WORDS:,} words")
    return words


def expanded(line: str, environment: dict[str, str]) -> tuple[list[str], list[str]]:
    """Words with ``$NAME``, ``${NAME:-default}`` and ``$(NAME)`` put in where their value is known."""
    words, missing = shell_split(line), []
    local = {**environment, **settings_in(words)}

    def value(match: re.Match[str]) -> str:
        name, default = match[1] or match[2] or match[4], match[3]
        if name in local:
            return local[name]
        if default is not None:
            return default
        missing.append(f"variable {name} has no value here")
        return match[0]

    full = [_VARIABLE.sub(value, word)[:MOST_CHARACTERS] for word in words]
    if sum(map(len, full)) > 4 * MOST_CHARACTERS:
        raise BadInput(f"the command is longer than {4 * MOST_CHARACTERS:,} characters with its variables put in")
    return full, list(dict.fromkeys(missing))


def start_of(words: Sequence[str], image: str, nested: int = 0) -> Start | None:
    """Engine, the words before its program, and the words after it up to the next shell operator.

    Whatever stands before is a wrapper: nohup, env, srun, torchrun, mpirun, numactl, docker run, kubectl exec, ssh.

    >>> start_of("srun -N1 torchrun --nproc-per-node 8 -m sglang.launch_server --tp 8".split(), "")[0::2]
    ('sglang', ['--tp', '8'])
    """
    for i, word in enumerate(words):
        name, after = word.rsplit("/", 1)[-1], words[i + 1:i + 3]
        script = name in ("bash", "sh", "zsh") and len(after) == 2 and re.fullmatch(r"-\w*c", after[0])
        if script and (found := _inside(after[1], image, nested)) is not None:
            return found[0], [*words[:i], *found[1]], found[2]
        if name == "vllm" and after and (after[0] == "serve" or after[0].startswith("-")):
            return "vllm", list(words[:i]), _until_operator(words[i + 1 + (after[0] == "serve"):])
        if name == "sglang" and after[:1] == ["serve"]:
            return "sglang", list(words[:i]), _until_operator(words[i + 2:])
        if word == "-m" and after and after[0] in MODULES:
            return MODULES[after[0]], list(words[:i]), _until_operator(words[i + 2 + (after[1:] == ["serve"]):])
        if name == "trtllm-serve" and after[:1] not in (["disaggregated"], ["disaggregated_mpi_worker"]):
            return "tensorrt-llm", list(words[:i]), _until_operator(words[i + 1 + (after[:1] == ["serve"]):])
        if name.endswith(("sglang/launch_server.py", "openai/api_server.py")) or (
                name in ("launch_server.py", "api_server.py") and re.search("sglang|vllm", word)):
            return ("sglang" if "sglang" in word else "vllm"), list(words[:i]), _until_operator(words[i + 1:])
    for i, word in enumerate(words):
        if engine_of_image(word) == "vllm" and {"docker", "podman", "nerdctl"} & set(words[:i]):
            return "vllm", list(words[:i + 1]), _until_operator(words[i + 1:])
        if " " in word and i and not word.startswith("-") and (found := _inside(word, image, nested)) is not None:
            return found[0], [*words[:i], *found[1]], found[2]      # ssh HOST "...", tmux new "..."
    if image and engine_of_image(image) == "vllm" and words and words[0].startswith("-"):
        return "vllm", [], _until_operator(words)               # the image's entry point is the server
    return None


def _inside(text: str, image: str, nested: int) -> Start | None:
    """The start inside a quoted script."""
    if nested >= MOST_NESTED:
        return None
    inner = logical_line(text, {})[0]
    for piece in re.split(r"&&|;|\|\|", inner):
        try:
            found = start_of(shell_split(piece), image, nested + 1)
        except BadInput:
            continue
        if found is not None:
            return found
    return None


def engine_of_image(word: str) -> str:
    """Engine of a container image, empty where it is none that we know.

    >>> engine_of_image("lmsysorg/sglang:v0.5.10"), engine_of_image("nginx:1")
    ('sglang', '')
    """
    match = re.search(r"(?:^|/)(vllm-openai|sglang|tritonllm|tensorrt-llm)[\w.-]*(?::|@|/release:|$)", word)
    if match is None or word.startswith("-"):
        return ""
    return {"vllm-openai": "vllm", "sglang": "sglang"}.get(match[1], "tensorrt-llm") if "/" in word else ""


def _until_operator(words: Sequence[str]) -> list[str]:
    kept = []
    for word in words:
        if word in _OPERATORS or re.match(r"\d?>{1,2}(&|/|\w)", word):
            break
        kept.append(word.rstrip(";"))
        if word.endswith(";"):
            break
    return kept


def settings_in(words: Sequence[str]) -> dict[str, str]:
    """``NAME=value`` words, also after ``-e`` or ``--env=``."""
    found = {}
    for word in words:
        if match := re.fullmatch(r"(?:--env=|-e)?([A-Z_][A-Z0-9_]*)=(.*)", word, re.DOTALL):
            found[match[1]] = match[2].rstrip(";")
    return found


def gpus_seen(environment: dict[str, str], before: Sequence[str]) -> int | None:
    """GPUs that the settings or ``docker run --gpus`` leave to the launch; None where nothing says.

    >>> gpus_seen({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, []), gpus_seen({}, ["docker", "run", "--gpus", "2"])
    (4, 2)
    """
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        given = environment.get(name, "all").strip()
        if given not in ("all", "", "none", "void") and "$" not in given:
            return len(given.split(","))
    words = [piece for word in before for piece in (word.split("=", 1) if word.startswith("--gpus=") else [word])]
    for flag, value in zip(words, words[1:], strict=False):
        if flag == "--gpus":
            named = re.search(r"device=([\w,-]+)", value)
            return len(named[1].split(",")) if named else int(value[:6]) if value[:6].isdecimal() else None
    return None
