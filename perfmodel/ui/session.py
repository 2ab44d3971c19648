"""What one reader has set so far: the view, its address, and the names of the widgets that show it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from perfmodel.ui.address import View, from_address, to_address

UNDER_WAY_S = 2.0  # an address that was replaced so recently may still come back; it is no wish of the reader


def current() -> View:
    """The view of this session; that of the address where somebody opened or changed one."""
    import streamlit as st

    state, query = st.session_state, {key: st.query_params.get_all(key) for key in st.query_params}
    replaced = state.setdefault("replaced", {})
    late = time.monotonic() - replaced.get(str(query), -UNDER_WAY_S) < UNDER_WAY_S
    if "view" not in state or (query != state.query and not late):
        state.view = from_address(query)
        state.query = query
        renew()
    view: View = state.view
    return view


def keep(view: View) -> View:
    """Remember the view and write its address, which restores it."""
    import streamlit as st

    state, now = st.session_state, time.monotonic()
    query = {key: [text] if isinstance(text, str) else text for key, text in to_address(view).items()}
    state.view = view
    if query != state.query:
        state.replaced = {key: at for key, at in state.replaced.items() if now - at < UNDER_WAY_S}
        state.replaced[str(state.query)] = now
        state.query = query
        st.query_params.from_dict(query)
    return view


def change(view: View) -> None:
    """Start the run again with another view."""
    import streamlit as st

    keep(view)
    renew()
    st.rerun()


def renew() -> None:
    """Give all widgets new names, so that they take their values from the view."""
    import streamlit as st

    st.session_state.generation = st.session_state.get("generation", 0) + 1


def forget() -> None:
    """Back to an empty address."""
    import streamlit as st

    st.query_params.clear()
    st.session_state.clear()


def widget(name: str, value: Any = None) -> str:
    """Key of a widget; it begins with the value, and keeps what the reader sets until the view is replaced."""
    import streamlit as st

    key = f"{name}-{st.session_state.get('generation', 0)}"
    if value is not None and key not in st.session_state:
        st.session_state[key] = value
    return key


def options(name: str, known: Iterable[Any], value: Any) -> list[Any]:
    """Options of the widget of that name: those known, and the value that it began with where it is another."""
    import streamlit as st

    key = f"options of {name}-{st.session_state.get('generation', 0)}"
    if value not in st.session_state.setdefault(key, with_value(known, value)):
        st.session_state[key] = with_value(known, value)
    found: list[Any] = st.session_state[key]
    return found


def with_value(known: Iterable[Any], value: Any) -> list[Any]:
    """Options that hold the value, numbers in order.

    >>> with_value([1, 2, 8], 4), with_value(["a"], "a")
    ([1, 2, 4, 8], ['a'])
    """
    listed = list(known)
    if value in listed:
        return listed
    return [*listed, value] if isinstance(value, str) else sorted([*listed, value])
