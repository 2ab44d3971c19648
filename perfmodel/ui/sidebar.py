"""The question that all strategies share: page, model, node, engine, lengths, load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from perfmodel.catalog import names
from perfmodel.engines import ENGINES
from perfmodel.errors import PerfModelError
from perfmodel.serving.lengths import lognormal, parse_lengths
from perfmodel.ui import ask, uploads
from perfmodel.ui.address import MOST_ADDRESS, PACKED, PAGES, View, checked
from perfmodel.ui.session import change, options, widget
from perfmodel.ui.words import plain, refused

TOKENS = [16, 32, 64, 128, 200, 256, 512, 1000, 1024, 2000, 2048, 2500, 4096, 8192, 16384, 32768, 65536, 131072]
CONTEXTS = [0, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144]
FLIGHTS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
NEWEST = "newest"


def controls(view: View) -> View:
    """Draw the sidebar; the view as it is set there."""
    import streamlit as st

    with st.sidebar:
        view = _model(view)
        view = _node(view)
        view = _engine(view)
        view = _load(view)
        _address(view)
    page = st.segmented_control("Page", PAGES, key=widget("page", view.page), format_func=str.capitalize,
                                label_visibility="collapsed")  # fmt: skip
    return checked(replace(view, page=page or view.page))


def _address(view: View) -> None:
    """What the address of the page is good for."""
    import streamlit as st

    if any(len(getattr(view, name)) > MOST_ADDRESS for name in PACKED):
        st.warning("An uploaded file is too large for the address of this page: keep the file to come back.")
    else:
        st.caption("The address of this page holds all that is set here: copy it to come back, or to share.")


def _model(view: View) -> View:
    import streamlit as st

    if view.config:
        return _uploaded(view, "config", "Model", ask.model_of(view).name)
    known = options("model", names("model"), view.model)
    model = st.selectbox("Model", known, key=widget("model", view.model))
    return _uploader(replace(view, model=model or view.model), "config", "Upload a config.json", ["json"],
                     uploads.pack_model)  # fmt: skip


def _node(view: View) -> View:
    import streamlit as st

    if view.machine:
        return _uploaded(view, "machine", "Node", ask.node_of(view).name)
    known = options("node", names("node"), view.node)
    typed = "One of the list, or type a name such as 4x-h100-sxm: a number, x, an accelerator."
    node = st.selectbox("Node", known, key=widget("node", view.node), accept_new_options=True, help=typed)
    return _uploader(replace(view, node=node or view.node), "machine", "Upload a node file", ["yaml", "yml"],
                     uploads.pack_node)  # fmt: skip


def _uploaded(view: View, field: str, word: str, name: str) -> View:
    import streamlit as st

    st.markdown(f"{word}: **{plain(name)}**, uploaded")
    if st.button(f"{word} of the catalog instead", key=widget(f"drop-{field}")):
        change(replace(view, **{field: ""}, strategies=()))  # type: ignore[arg-type]
    return view


def _uploader(view: View, field: str, label: str, endings: list[str], pack: Callable[[bytes], str]) -> View:
    import streamlit as st

    with st.popover(label, width="stretch"):
        given = st.file_uploader(label, endings, key=widget(f"upload-{field}"), label_visibility="collapsed",
                                 max_upload_size=uploads.MOST_BYTES >> 20)  # fmt: skip
        try:
            packed = pack(given.getvalue()) if given is not None else ""
        except PerfModelError as error:
            packed = ""
            refused(error)
    if packed:
        change(replace(view, **{field: packed}, strategies=()))  # type: ignore[arg-type]
    return view


def _engine(view: View) -> View:
    import streamlit as st

    name, _, version = view.engine.partition("==")
    left, right = st.columns(2)
    engine = left.selectbox("Engine", options("engine", ENGINES, name), key=widget("engine", name))
    wanted = version if engine == name and version else NEWEST
    listed = [NEWEST, *reversed(ENGINES[engine].VERSIONS)] if engine in ENGINES else [NEWEST]
    key = f"version-{engine}"
    chosen = right.selectbox("Version", options(key, listed, wanted), key=widget(key, wanted))
    return replace(view, engine=engine if chosen == NEWEST else f"{engine}=={chosen}")


def _load(view: View) -> View:
    import streamlit as st

    context = st.select_slider("Context of one sequence [tokens]", options("context", CONTEXTS, view.context),
                               key=widget("context", view.context), format_func=_context,
                               help="What one sequence may hold: max_model_len, context-length.")  # fmt: skip
    inputs = _length(view.input_tokens, "Prompt [tokens]", "input")
    outputs = _length(view.output_tokens, "Answer [tokens]", "output")
    flights = options("concurrency", FLIGHTS, view.concurrency)
    concurrency = st.select_slider("Requests in flight, up to", flights, key=widget("concurrency", view.concurrency),
                                   format_func="{:,}".format)  # fmt: skip
    return replace(view, context=context, input_tokens=inputs, output_tokens=outputs, concurrency=concurrency)


def _context(tokens: int) -> str:
    return f"{tokens:,}" if tokens else "the model's own"


def _length(text: str, label: str, key: str) -> str:
    """A mean length and its spread, as text that `predict` reads."""
    import streamlit as st

    lengths = parse_lengths(text)
    if lengths.words.startswith("uniform"):  # only an address says so; it stays as it is
        st.markdown(f"{label}: {plain(lengths.words)}")
        return text
    mean = int(lengths.mean) if lengths.mean == int(lengths.mean) else lengths.mean
    sigma = float(lengths.words.rpartition(":")[2]) if lengths.spread else 0.0
    left, right = st.columns([3, 2])
    tokens = left.select_slider(label, options(key, TOKENS, mean), key=widget(key, mean), format_func="{:,}".format)
    spread = right.select_slider("Spread", options(f"{key}-spread", [i / 10 for i in range(16)], sigma),
                                 key=widget(f"{key}-spread", sigma),
                                 help="Deviation of the logarithm of a lognormal length; 0: all alike.")  # fmt: skip
    return lognormal(tokens, spread).words if spread else f"{tokens:g}"
