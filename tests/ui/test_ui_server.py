"""`perfmodel ui`: where it listens, whom it answers, and the script of the page without a browser."""

import http.client
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from command_line import ask

import perfmodel.cli.ui as command
import perfmodel.ui

pytest.importorskip("streamlit", reason="the page needs perfmodel[ui]")

from browser import serving  # noqa: E402

SCRIPT = Path(perfmodel.ui.__file__).with_name("app.py")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Calls of the server, which does not start."""
    calls: list[Any] = []
    monkeypatch.setattr(command, "serve", lambda *where: calls.append(where))
    return calls


def test_it_listens_on_loopback_unless_asked(served: list[Any]) -> None:
    quiet = ask("ui", "--port", "18999", "--no-browser")
    loud = ask("ui", "--port", "18999", "--host", "0.0.0.0")
    assert [(host, port, browser) for host, port, _, browser in served] == [
        ("127.0.0.1", 18999, False), ("0.0.0.0", 18999, True)]  # fmt: skip
    assert "warning" not in quiet.stderr
    assert "warning: everybody who reaches 0.0.0.0:18999" in loud.stderr
    assert quiet.stdout == loud.stdout == ""


def test_a_taken_port_is_refused_with_another(served: list[Any]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        result = ask("ui", "--port", str(port))
    assert (result.exit_code, served) == (2, [])
    assert f"127.0.0.1:{port}: address already in use" in result.stderr
    assert f"hint: --port {port + 1}" in result.stderr


def test_without_streamlit_it_says_what_to_install(served: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    result = ask("ui")
    assert (result.exit_code, served) == (2, [])
    assert "hint: pip install 'perfmodel[ui]'" in result.stderr


def test_names_of_other_sites_are_not_answered(served: list[Any]) -> None:
    ask("ui", "--port", "18999", "--name", "gpu.example.org")
    assert served[0][2] == ["localhost", "127.0.0.1", "::1", "gpu.example.org"]
    assert command.host_names("127.0.0.1") == ["localhost", "127.0.0.1", "::1"]
    assert "gpu-box" in command.host_names("gpu-box")
    assert socket.gethostname() in command.host_names("0.0.0.0")
    assert "*" not in command.host_names("0.0.0.0")


def status(address: str, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    where = urlsplit(address)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=10)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    found = answer.status, answer.read(2000) if answer.status != 101 else b""
    connection.close()
    return found


def opened(address: str, **headers: str) -> int:
    """What a browser is told that opens a session of the page."""
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Version": "13",
               "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec_WebSocket_Protocol": "streamlit"}  # fmt: skip
    return status(address, "/_stcore/stream", **upgrade, **headers)[0]


def test_other_sites_open_no_session(address: str) -> None:
    port = urlsplit(address).port
    assert opened(address, Origin=address) == 101
    assert opened(address, Origin="http://evil.example") == 403
    rebound = f"evil.example:{port}"  # a name of theirs that leads here: the request then looks like one of our own
    assert opened(address, Origin=f"http://{rebound}", Host=rebound) == 403


def test_other_sites_upload_nothing(address: str) -> None:
    assert status(address, "/_stcore/upload_file/a/b", "PUT", Origin="http://evil.example")[0] == 403


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "/../../../../etc/passwd", "/static/..%2f..%2f..%2f..%2fetc/passwd", "/media/..%2f..%2fetc/passwd",
     "/app/static/app.py", "/component/../app.py", "/app.py"],
)  # fmt: skip
def test_no_file_is_served(address: str, path: str) -> None:
    _, body = status(address, path)
    assert b"root:" not in body
    assert b"The script that Streamlit runs" not in body


def app(query: dict[str, Any]) -> Any:
    from streamlit.testing.v1 import AppTest

    page = AppTest.from_file(str(SCRIPT), default_timeout=60)
    for key, value in query.items():
        page.query_params[key] = value
    return page.run()


def test_the_script_shows_three_strategies() -> None:
    page = app({})
    assert not page.exception
    assert [one.value for one in page.subheader[1:]] == ["TP8", "TP8\\+EP8", "PP8"]
    assert "--tensor-parallel-size 8" in page.code[0].value


def test_a_slider_changes_the_answer_and_the_address() -> None:
    page = app({"strategies": ["tp=8"]})
    page.select_slider(key="pp-0-of-8-1").set_value(2)
    page.select_slider(key="tp-0-of-8-1").set_value(4).run()
    assert not page.exception
    assert page.subheader[1].value == "TP4xPP2"
    assert page.query_params["strategies"] == "tp=4,pp=2"


def test_what_does_not_fit_says_what_would_and_does_it() -> None:
    page = app({"strategies": ["tp=8"], "context": ["0"]})
    assert any("does not fit" in one.value for one in page.markdown)
    cure = next(button for button in page.button if "fp8 fits" in button.label.replace("\\", ""))
    cure.click().run()
    assert not page.exception
    assert page.query_params["strategies"] == "tp=8,kv_dtype=fp8"
    assert not any("does not fit" in one.value for one in page.markdown)


def test_a_refused_strategy_stands_beside_the_others() -> None:
    page = app({"strategies": ["tp=16", "tp=8"]})
    assert not page.exception
    assert "needs 16 GPUs" in page.error[0].value
    assert page.subheader[2].value == "TP8"


@pytest.mark.parametrize("model", ["llama-3.1-8b", "deepseek-v4-pro", "gpt-oss-120b", "kimi-linear-48b-a3b"])
def test_every_kind_of_model_has_a_page(model: str) -> None:
    page = app({"model": [model], "node": ["8x-h200-sxm"], "engine": ["sglang"]})
    assert not page.exception
    assert not page.error
    assert len(page.subheader) > 1


def test_a_job_is_sized_with_its_price() -> None:
    page = app({"page": ["job"], "strategies": ["tp=8"], "samples": ["5000"], "price": ["1.5"]})
    assert not page.exception
    assert any("cost" in one.value for one in page.markdown)


def test_a_fault_of_ours_shows_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr("perfmodel.ui.ask.answers", broken)
    page = app({})
    assert not page.exception
    assert "fault of perfmodel" in page.error[0].value
    assert "secret" not in page.error[0].value
