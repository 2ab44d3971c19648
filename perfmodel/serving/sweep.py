"""Many questions at once, here or on any executor: processes, threads, a Dask cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from typing import Any

from perfmodel.errors import BadInput, shown


def sweep(
    verb: Callable[..., Any],
    questions: Iterable[Mapping[str, Any]],
    executor: Executor | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Any]:
    """Answers of ``verb`` (such as `predict` or `simulate`) to keyword arguments, in the order of the questions.

    The deployment is the keyword ``deployment``. With an ``executor`` (a Dask client has one:
    ``client.get_executor()``) questions run there; answers are the same, bit for bit.
    """
    if not callable(verb):
        raise BadInput(f"sweep needs a verb such as pm.predict, not {shown(verb)}")
    jobs = [(verb, dict(question)) for question in questions]
    answers = []
    for done, answer in enumerate((executor.map if executor else map)(_ask, jobs), start=1):
        answers.append(answer)
        if progress:
            progress(done, len(jobs))
    return answers


def _ask(job: tuple[Callable[..., Any], dict[str, Any]]) -> Any:
    verb, keywords = job
    return verb(**keywords)
