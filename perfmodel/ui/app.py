"""The script that Streamlit runs for every look at the page: read the view, draw the controls, ask, show."""

from __future__ import annotations

import logging
from collections.abc import Callable

from perfmodel.errors import PerfModelError
from perfmodel.ui import compare, job, measured, sidebar
from perfmodel.ui.address import View
from perfmodel.ui.session import current, forget, keep
from perfmodel.ui.words import refused

SHOW: dict[str, Callable[[View], None]] = {"compare": compare.show, "measured": measured.show, "job": job.show}
FAULT = """This is a fault of perfmodel, not of your question. The terminal that runs `perfmodel ui` shows where;
the address of this page shows the question again."""


def main() -> None:
    """One run of the page."""
    import streamlit as st

    st.set_page_config(page_title="perfmodel", layout="wide")
    try:
        view = current()
    except PerfModelError as error:
        refused(error)
        st.button("Open the page afresh", on_click=forget)
        return
    try:
        view = keep(sidebar.controls(view))
        SHOW[view.page](view)
    except PerfModelError as error:
        refused(error)
    except Exception:
        logging.getLogger(__name__).exception("the page failed")
        st.error(FAULT)


if __name__ == "__main__":
    main()
