"""The page in Chromium: the ways that people take through it, and what it must not do."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

pytest.importorskip("streamlit", reason="the page needs perfmodel[ui]")
playwright = pytest.importorskip("playwright.sync_api", reason="the browser tests need perfmodel[browser]")

from browser import CHROMIUM, DONE, WAIT_MS, serving  # noqa: E402

if CHROMIUM is None:
    pytest.skip("no chromium on this machine", allow_module_level=True)

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "_name_or_path": "somebody/![x](http://192.0.2.1/)",
}  # fmt: skip
SWEEP = "concurrency,output_tok_s,input_tokens,output_tokens\n1,80,1024,1024\n8,350,1024,1024\n32,700,1024,1024\n"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        flags = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def windows(chromium: Any) -> Iterator[Any]:
    """Windows that share what they have loaded; whatever they ask for must be on this machine."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    context.set_default_timeout(WAIT_MS)
    asked: set[str] = set()
    context.on("request", lambda request: asked.add(urlsplit(request.url).hostname or ""))
    yield context
    context.close()
    assert asked - {""} == {"127.0.0.1"}


@pytest.fixture
def page(windows: Any) -> Iterator[Any]:
    window = windows.new_page()
    yield window
    window.close()


def look(page: Any, url: str) -> None:
    page.goto(url)
    settle(page)


def settle(page: Any) -> None:
    """Wait until the script has run and what it sent is drawn."""
    page.wait_for_selector(DONE)
    page.wait_for_timeout(300)
    page.wait_for_selector(DONE)
    assert page.locator('[data-testid="stException"]').count() == 0
    assert "Traceback" not in page.inner_text("body")


def upload(page: Any, label: str, *files: dict[str, Any]) -> None:
    page.get_by_test_id("stFileUploader").filter(has_text=label).locator("input[type=file]").set_input_files(files)
    page.wait_for_timeout(500)
    settle(page)


def file(name: str, text: str | bytes) -> dict[str, Any]:
    return {"name": name, "mimeType": "text/plain", "buffer": text.encode() if isinstance(text, str) else text}


def query(page: Any) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


def test_main_path(page: Any, address: str) -> None:
    look(page, address)
    body = page.inner_text("body")
    assert "kimi-k2.6 on 8x-rtx-pro-6000-server" in body
    assert body.count("fits") >= 3
    assert page.locator("img").count() == 6  # three curves, three memories
    for picture in page.locator("img").all():
        assert picture.evaluate("e => e.naturalWidth") > 400
        assert picture.get_attribute("alt")
    wide = """() => [...document.querySelectorAll('[data-testid=stColumn] p, [data-testid=stColumn] img')].filter(e =>
        e.getBoundingClientRect().right > e.closest('[data-testid=stColumn]').getBoundingClientRect().right
    ).map(e => e.outerHTML.slice(0, 100))"""
    assert page.evaluate(wide) == []  # nothing sticks out of its card
    slider = page.get_by_role("slider", name="Tensor parallel").first
    slider.focus()
    slider.press("ArrowLeft")
    page.wait_for_url("**strategies=tp%3D7*")
    settle(page)
    assert "7" in page.get_by_test_id("stAlert").first.inner_text()  # 64 heads do not divide by 7: the engine's rule
    command = page.get_by_test_id("stCode").filter(has_text="vllm serve").first
    command.hover()
    command.get_by_role("button", name="Copy to clipboard").click()
    assert page.evaluate("navigator.clipboard.readText()") == command.locator("code").inner_text()


def test_address_restores_a_view(page: Any, windows: Any, address: str) -> None:
    look(page, address)
    page.get_by_role("radio", name="Job").click()
    page.wait_for_url("**page=job*")
    settle(page)
    samples = page.get_by_role("slider", name="Samples")
    samples.focus()
    samples.press("ArrowRight")
    page.wait_for_url("**samples=500000*")
    settle(page)
    here, answer = page.url, page.locator("table").first.inner_text()
    other = windows.new_page()
    look(other, here)
    assert other.locator("table").first.inner_text() == answer
    assert "500,000" in other.inner_text("body")
    assert other.url == here
    other.close()


def test_upload_of_a_config(page: Any, address: str) -> None:
    look(page, f"{address}/?node=4x-h100-sxm")
    page.get_by_role("button", name="Upload a config.json").click()
    upload(page, "JSON", file("../../etc/config.json", json.dumps(CONFIG)))
    page.wait_for_url("**config=*")
    settle(page)
    assert "uploaded" in page.inner_text('[data-testid="stSidebar"]')
    assert "fits" in page.inner_text("body")
    here = page.url
    look(page, here)  # the address holds the file
    assert "uploaded" in page.inner_text('[data-testid="stSidebar"]')
    assert page.locator("img").count() >= 4


def test_wrong_config_is_refused_in_words(page: Any, address: str) -> None:
    look(page, address)
    page.get_by_role("button", name="Upload a config.json").click()
    wrong = {"PK\x03 <img src=x onerror=alert(1)>": "not JSON", '{"model_type": "nonsuch"}': "unknown type 'nonsuch'"}
    for content, says in wrong.items():
        upload(page, "JSON", file("config.json", content))
        assert says in page.get_by_test_id("stAlert").first.inner_text()
        assert page.locator("img").count() == 6  # the page goes on with the model that it had
    assert "config" not in query(page)


def test_benchmark_is_set_beside_and_fitted(page: Any, address: str, tmp_path: Path) -> None:
    look(page, f"{address}/?page=measured&strategies=tp%3D8")
    upload(page, "CSV", file("sweep.csv", SWEEP))
    page.wait_for_url("**measured=*")
    settle(page)
    assert "3 rows" in page.inner_text("body")
    page.get_by_text("Recalibrate").click()
    page.wait_for_url("**fit=on*")
    settle(page)
    assert "with the fitted ones" in page.inner_text("body")
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Save the calibration").click()
    waiting.value.save_as(tmp_path / "own.yaml")
    assert (tmp_path / "own.yaml").read_text().startswith("schema: calibration/1")
    here = page.url
    look(page, here)
    assert "with the fitted ones" in page.inner_text("body")


def test_wrong_benchmark_is_refused_with_what_is_known(page: Any, address: str) -> None:
    look(page, f"{address}/?page=measured")
    upload(page, "CSV", file("sweep.csv", "a,b\n1,2\n"))
    said = page.get_by_test_id("stAlert").first.inner_text()
    assert "not a result file" in said
    assert "vllm bench" in said


def test_log_is_set_beside(page: Any, address: str) -> None:
    look(page, f"{address}/?page=measured&model=llama-3.1-8b&node=8x-h100-sxm&strategies=tp%3D1")
    lines = "Model loading took 14.99 GiB memory and 5 seconds\nGPU KV cache size: 476,016 tokens\n"
    upload(page, "LOG", file("server.log", lines))
    page.wait_for_url("**log=*")
    settle(page)
    assert "476,016" in page.locator("table").first.inner_text()


def test_phone_needs_no_sideways_scroll(chromium: Any, address: str) -> None:
    page = chromium.new_page(viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    page.set_default_timeout(WAIT_MS)
    wide = """() => [...document.querySelectorAll('[data-testid=stMain] *')].filter(e =>
        e.getBoundingClientRect().right > 391 && !e.closest(
            'input, [role=slider], [data-testid=stCode], [data-testid=stDataFrame], table')
    ).map(e => e.outerHTML.slice(0, 100))"""
    for which in ("", "?page=measured", "?page=job&price=1.5"):
        look(page, f"{address}/{which}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.evaluate(wide) == []
    page.close()


def test_wrong_address_is_refused_with_a_way_out(page: Any, address: str) -> None:
    look(page, f"{address}/?modle=kimi-k2.6")
    assert "unknown part of an address 'modle'; nearest: model" in page.get_by_test_id("stAlert").inner_text()
    page.get_by_role("button", name="Open the page afresh").click()
    page.wait_for_selector("img")
    settle(page)
    assert "modle" not in page.url
