"""The documentation site: the pages of this folder and the docstrings of the four packages."""

import clients.flower.client_app  # noqa: F401 - before autodoc, which imports as a type checker would
import sims.bench.run_bench  # noqa: F401

project = "fedcel"
copyright = "the fedcel authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "fedcel"
html_copy_source = False
exclude_patterns = ["results"]
myst_heading_anchors = 4
myst_links_external_new_tab = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
suppress_warnings = ["myst.xref_missing"]  # tests/test_docs.py holds links


def bars(app, what, name, obj, options, lines):  # noqa: D103 - Sphinx's signature
    lines[:] = [line.replace("|", "\\|") for line in lines]  # norms, not reST's substitutions


def setup(app):  # noqa: D103 - Sphinx's name
    app.connect("autodoc-process-docstring", bars)


napoleon_use_ivar = True  # a field is described where its class lists it, once
