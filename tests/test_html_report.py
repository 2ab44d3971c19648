"""A report as one file: no network, nothing of a name becomes markup, whole or not there, the same bytes twice."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from command_line import ask

import perfmodel as pm
from perfmodel.report import html, markdown
from perfmodel.report.page import Answers
from perfmodel.report.page import ask as answers_of

KIMI = ["--model", "kimi-k2.6", "--node", "8x-rtx-pro-6000-server", "--tp", "8", "--context", "32768"]
HOSTILE = '<script>alert(1)</script>"\'><img src=x onerror=alert(2)> [a](javascript:x) | `c` ${x} \x00\u202e'
VOID = {"meta", "img", "br", "hr"}


class Page(HTMLParser):
    """Tags with their attributes, whether they close in order, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture(scope="module")
def answers() -> Answers:
    d = pm.deploy("kimi-k2.6", node="8x-rtx-pro-6000-server", tp=8, context=32768)
    return answers_of(d, command="perfmodel report ...", concurrency=[1, 8, 32], others=[pm.deploy(
        "kimi-k2.6", node="8x-rtx-pro-6000-server", pp=8, context=32768)], measured=[(8.0, 407.0), (12.0, 500.0)])


@pytest.fixture(scope="module")
def page(answers: Answers) -> str:
    return html.render(answers)


def test_the_page_is_one_file_that_asks_for_nothing(page: str) -> None:
    found = Page(page)
    assert not found.open
    assert not {tag for tag, _ in found.tags} & {"script", "link", "iframe", "object", "embed", "form", "base", "svg"}
    for tag, given in found.tags:
        assert not any(name.startswith("on") for name in given)
        assert tag != "img" or ((given["src"] or "").startswith("data:image/svg+xml;base64,") and given["alt"])
        assert "srcset" not in given
    assert "default-src 'none'" in page
    assert not re.findall(r"url\(|@import", page)


def test_the_page_says_all_that_it_must(page: str, answers: Answers) -> None:
    words = "".join(Page(page).words)
    for heading in ("Question", "Answer", "Memory", "Speed over load", "Where the time goes", "What would change it",
                    "Inputs: accelerator", "Inputs: node", "Inputs: model", "Inputs: calibration",
                    "Assumptions"):  # fmt: skip
        assert heading in words
    assert answers.command in words and answers.deployment.command() in words
    assert f"{answers.memory.kv_tokens:,}" in words and pm.__version__ in words
    sources = {source.title for noun in (answers.deployment.node, answers.deployment.accelerator)
               for source in noun.sources.values()}  # fmt: skip
    assert all(title in words for title in sources)
    assert all(note in words for note in answers.curve.assumptions)
    assert "407" in words  # the measured point
    assert Page(page).tags.count(("table", {})) >= 8


def test_the_same_question_is_the_same_bytes(answers: Answers, page: str) -> None:
    assert html.render(answers) == page


@pytest.fixture(scope="module")
def hostile(answers: Answers) -> Answers:
    d = answers.deployment
    model = d.model.model_copy(update={"name": HOSTILE, "aliases": (HOSTILE,), "title": HOSTILE, "note": HOSTILE})
    accelerator = d.accelerator.model_copy(update={"name": HOSTILE, "title": HOSTILE, "vendor": HOSTILE, "sources": {
        key: one.model_copy(update={"title": HOSTILE, "url": "javascript:alert(1)"})
        for key, one in d.accelerator.sources.items()}})
    bad = replace(d, model=model, accelerator=accelerator, assumptions=(HOSTILE,))
    curve = replace(answers.curve, deployment=bad)
    return replace(answers, deployment=bad, command=HOSTILE, curve=curve, warnings=(HOSTILE,))


def test_nothing_of_a_name_becomes_markup(hostile: Answers, page: str) -> None:
    text = html.render(hostile)
    found = Page(text)
    assert not found.open
    assert {tag for tag, _ in found.tags} == {tag for tag, _ in Page(page).tags}
    assert [tag for tag, _ in found.tags if tag == "img"] == [tag for tag, _ in Page(page).tags if tag == "img"]
    assert not any((given.get("href") or "https://").startswith("javascript") for _, given in found.tags)
    assert "\x00" not in text and "\u202e" not in text
    assert any("<script>alert(1)</script>" in words for words in found.words)  # said, not run


def test_nothing_of_a_name_becomes_markdown(hostile: Answers, tmp_path: Path) -> None:
    text, _ = markdown.render(hostile, tmp_path / "a.md")
    plain = re.sub(r"^(`{3,})sh\n.*?^\1$", "", text, flags=re.M | re.S)
    assert not re.search(r"(?<!\\)<(?![a\-0-9])[a-z]", plain)
    assert not re.search(r"(?<!\\)\]\((?!<)", plain)
    rows = [line for line in plain.splitlines() if line.startswith("|")]
    widths = {len(re.findall(r"(?<!\\)\|", line)) for line in rows}
    assert rows and all(width >= 3 for width in widths)


def test_markdown_tables_are_whole(answers: Answers, tmp_path: Path) -> None:
    text, pictures = markdown.render(answers, tmp_path / "a b.md")
    assert {path.name for path in pictures} == set(re.findall(r"\]\(<([^>]+)>\)", text))
    assert all(content.startswith(b"<?xml") for content in pictures.values())
    for table in re.findall(r"(?:^\|.*\n)+", text, re.M):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1, table


def test_report_writes_whole_files(tmp_path: Path) -> None:
    file = tmp_path / "kimi.html"
    file.write_text("old")
    done = ask("report", *KIMI, "--concurrency", "1,8", "-o", str(file))
    assert done.exit_code == 0, done.output
    assert done.stdout == "" and f"written to {file}" in done.stderr
    assert file.read_text().startswith("<!DOCTYPE html>")
    assert list(tmp_path.iterdir()) == [file]


def test_report_says_no_with_exit_code_1(tmp_path: Path) -> None:
    words = ["report", "--model", "kimi-k2.6", "--node", "4x-rtx-pro-6000-server", "--tp", "4", "--concurrency", "1,8"]
    done = ask(*words, "-o", str(tmp_path / "no.md"))
    assert done.exit_code == 1
    text = (tmp_path / "no.md").read_text()
    assert "It does not fit" in text and "What would fit" in text
    assert {path.suffix for path in tmp_path.iterdir()} == {".md", ".svg"}


def test_report_as_json_holds_all_answers() -> None:
    done = ask("report", "--model", "llama-3.1-8b", "--node", "1x-h100-sxm", "--samples", "1000", "--json")
    assert done.exit_code == 0, done.output
    said: dict[str, Any] = json.loads(done.stdout)
    assert said["memory"]["fits"] and said["job"]["samples"] == 1000 and said["whatif"] and said["explain"]


@pytest.mark.parametrize(
    ("words", "message"),
    [((), "report needs --output"), (("-o", "a.docx"), "cannot write a .docx; known: .html, .md"),
     (("-o", "missing/a.html"), "there is no folder")],
)  # fmt: skip
def test_wrong_questions_are_refused(words: tuple[str, ...], message: str) -> None:
    done = ask("report", *KIMI, *words)
    assert done.exit_code == 2 and message in done.stderr


def test_measured_and_predicted_meet_at_the_measured_loads(answers: Answers, page: str) -> None:
    assert [p["concurrency"] for p in answers.curve.points] == [1, 8, 12, 32]
    words = " ".join(" ".join(Page(page).words).split())
    measured = words[words.index("measured, tok/s"):]
    head, row = "measured, tok/s predicted, tok/s predicted/measured", r"[0-9.]+ [0-9.]+"
    assert re.match(rf"{head} 8 407 {row} 12 500 {row}", measured)


def test_predict_and_compare_price_what_was_measured(tmp_path: Path) -> None:
    file = tmp_path / "seen.csv"
    file.write_text("concurrency,output_tok_s,tp\n3,200,8\n8,371,8\n24,600,8\n0,5,8\n")
    done = ask("predict", *KIMI, "--concurrency", "1,8", "--measured", str(file), "--json")
    assert [p["concurrency"] for p in json.loads(done.stdout)["points"]] == [1, 3, 8, 24]
    words = [word for word in KIMI if word not in ("--tp", "8")]
    done = ask("compare", *words, "--strategy", "tp=8", "--concurrency", "1,8", "--measured", str(file), "--json")
    assert [p["concurrency"] for p in json.loads(done.stdout)[0]["points"]] == [1, 3, 8, 24]
    other = ask("predict", *KIMI[:-4], "--tp", "4", "--concurrency", "1", "--measured", str(file))
    assert "warning: none of the measured rows has these conditions" in other.stderr


def test_what_does_not_fit_has_words_and_no_rate() -> None:
    d = pm.deploy("kimi-k2.6", node="8x-rtx-pro-6000-server", tp=8, kv_dtype="fp8")
    text = "".join(Page(html.render(answers_of(d, command="perfmodel report ...", concurrency=[1, 128]))).words)
    assert "does not fit: weights" in text and "oom_weights" not in text
    row = text[text.index("lost=1"):]
    assert re.match(r"lost=1\s*-\s*-\s*-\s*does not fit: weights", row)


def test_a_memory_fraction_grows_to_what_fits_and_not_beyond_one() -> None:
    d = pm.deploy("kimi-k2.6", node="8x-rtx-pro-6000-server", tp=8, context=32768, kv_dtype="fp8", memory_fraction=0.92)
    answers = answers_of(d, command="perfmodel report ...", concurrency=[256], input_tokens=8192)
    assert answers.explained is not None
    found = {e.name: e for e in answers.explained.elasticities}["memory_fraction"]
    assert 0 < found.moved < 1 / 0.92 - 1
    assert pm.memory(replace(d, options=replace(d.options, memory_fraction=0.92 * (1 + found.moved)))).fits
    assert not pm.memory(replace(d, options=replace(d.options, memory_fraction=0.92 * (1.002 + found.moved)))).fits
    assert f"(only {100 * found.moved:+.1f} % fits)" in "".join(Page(html.render(answers)).words)
