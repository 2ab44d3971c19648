"""``perfmodel ui``: the local page."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import closing, suppress
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path

import click

from perfmodel.cli.options import Question, examples, flag
from perfmodel.cli.output import warn
from perfmodel.errors import BadInput

EXAMPLES = examples(
    "perfmodel ui",
    "perfmodel ui --port 8600 --no-browser",
    "perfmodel ui --host 0.0.0.0 --name gpu-server.example.org",
)
MOST_UPLOAD_MB = 16
# Whatever a file of the reader's own says: no statistics, no watching of files, no tracebacks in the page; a page of
# another site neither opens a session nor uploads.
SETTINGS = {
    "browser.gatherUsageStats": "false",
    "client.showErrorDetails": "none",
    "client.showErrorLinks": "false",
    "client.toolbarMode": "minimal",
    "global.developmentMode": "false",
    "logger.hideWelcomeMessage": "true",
    "runner.magicEnabled": "false",
    "server.enableCORS": "true",
    "server.enableStaticServing": "false",
    "server.enableXsrfProtection": "true",
    "server.fileWatcherType": "none",
    "server.maxMessageSize": "32",
    "server.maxUploadSize": f"{MOST_UPLOAD_MB}",
    "server.showEmailPrompt": "false",
    "theme.primaryColor": "#0072B2",
}


@click.command(cls=Question, short_help="the same questions on a local page", epilog=EXAMPLES)
@flag("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", section="Where",
      help="address to listen on; any but loopback lets others in, without a password")
@flag("--port", default=8501, show_default=True, type=click.IntRange(1, 65535), metavar="N", section="Where",
      help="port to listen on")
@flag("--name", "names", multiple=True, metavar="NAME", section="Where",
      help="another name of this machine under which browsers ask for the page; may be repeated")
@flag("--browser/--no-browser", default=True, section="Where", help="open the page in a browser")
def ui(host: str, port: int, names: tuple[str, ...], browser: bool) -> None:
    """A page on this machine: models, nodes and strategies with sliders, pictures, your own benchmark beside it.

    Needs `pip install 'perfmodel[ui]'`, and no internet. Ctrl-C ends it.
    """
    if find_spec("streamlit") is None:
        raise BadInput("the page needs Streamlit", ["pip install 'perfmodel[ui]'"])
    if any("*" in name for name in names):
        raise BadInput("--name is one name, without *", ["repeat --name for another one"])
    check_free(host, port)
    if not is_loopback(host):
        warn([f"everybody who reaches {host}:{port} can use this page, and it asks for no password; "
              "safer: the default address, and from elsewhere `ssh -L 8501:127.0.0.1:8501 MACHINE`"])  # fmt: skip
    click.echo(f"perfmodel ui: http://{_shown(host)}:{port} (Ctrl-C ends it)", err=True)
    serve(host, port, [*host_names(host), *names], browser)


def serve(host: str, port: int, names: Sequence[str], browser: bool) -> None:
    """Run Streamlit in this process until it is interrupted; it answers under these names."""
    from streamlit import net_util
    from streamlit.web.cli import main as streamlit

    import perfmodel.ui

    net_util.get_external_ip = lambda: None  # else a refused page of another site makes it ask the internet for ours
    script = Path(perfmodel.ui.__file__).with_name("app.py")
    given = {**SETTINGS, "server.address": host, "server.port": f"{port}", "server.headless": f"{not browser}".lower()}
    flags = [f"--{name}={value}" for name, value in given.items()]
    flags += [f"--server.allowedHosts={name}" for name in names]
    flags += [f"--client.allowedOrigins=http://127.0.0.1:{port}"]  # who may steer the page from a frame around it
    streamlit(["run", str(script), *flags], prog_name="streamlit", standalone_mode=False)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def host_names(host: str) -> list[str]:
    """Names under which a browser may ask for the page; any other is another site's, pointed at this machine.

    >>> host_names("127.0.0.1")
    ['localhost', '127.0.0.1', '::1']
    """
    own = ["localhost", "127.0.0.1", "::1"]
    if is_loopback(host):
        return own
    anywhere = host in ("0.0.0.0", "::")
    return [*own, *([socket.gethostname(), socket.getfqdn(), *_addresses()] if anywhere else [host])]


def _addresses() -> list[str]:
    """Addresses of this machine: those of its name, and the one that its packets leave from; none is sent."""
    found: set[str] = set()
    with suppress(OSError):
        found |= {str(entry[4][0]) for entry in socket.getaddrinfo(socket.gethostname(), None)}
    with suppress(OSError), closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        probe.connect(("192.0.2.1", 9))  # documentation address, RFC 5737
        found.add(probe.getsockname()[0])
    return sorted(found)


def check_free(host: str, port: int) -> None:
    """Refuse an address that cannot be listened on, with what to do."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with closing(socket.socket(family, socket.SOCK_STREAM)) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((host, port))
    except socket.gaierror:
        raise BadInput(f"{host} is no address of this machine", ["leave out --host, or give 0.0.0.0"]) from None
    except OSError as error:
        why = (error.strerror or "cannot be used").lower()
        raise BadInput(f"{host}:{port}: {why}", [f"--port {port + 1 if port < 65535 else 8501}"]) from None


def _shown(host: str) -> str:
    return "localhost" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
