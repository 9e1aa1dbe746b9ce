"""The documentation site: the pages of this folder and the docstrings of the four packages.

`FEDCEL_DOCS_EXECUTE=1` runs the notebooks of the tutorials; without it they are shown as they are.
"""

import os
import re
import sys
from pathlib import Path

import clients.flower.client_app  # noqa: F401 - before autodoc, which imports as a type checker would
import sims.bench.run_bench  # noqa: F401

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "extensions"), str(HERE / "research" / "scripts")]

import generated_reference  # noqa: E402 - from the folder above
import result_rows  # noqa: E402

project = "fedcel"
copyright = "the fedcel authors"
extensions = ["myst_nb", "joined_streams", "mathml", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "fedcel"
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
exclude_patterns = ["results", "extensions"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
myst_links_external_new_tab = True
nb_execution_mode = "cache" if os.environ.get("FEDCEL_DOCS_EXECUTE") else "off"
nb_execution_cache_path = str(HERE.parent / "build" / "notebooks")
nb_execution_in_temp = True  # nothing is written beside the notebooks
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_merge_streams = True
smartquotes_action = "qe"  # quotes and ellipses: `--out` keeps its dashes
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
suppress_warnings = ["myst.xref_missing"]  # tests/test_docs.py holds links


def escape(app, what, name, obj, options, lines):  # noqa: D103 - Sphinx's signature
    for number, line in enumerate(lines):  # norms and "*k B D" of a type are no markup of reST
        escaped = line.replace("|", "\\|")
        is_type = line.lstrip().startswith((":type", ":vartype"))
        lines[number] = escaped.replace("*", "\\*") if is_type else escaped


def draw(app, page, source):  # noqa: D103 - Sphinx's signature
    if not page.startswith("tutorials/"):
        drawn = generated_reference.draw_references(result_rows.draw_results(source[0], page))
        drawn = re.sub(r"(?<=\d) ± (?=\d)", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}", drawn)
        source[0] = re.sub(r"([≤≥≶]) (?=-?\d)", "\\1\N{NO-BREAK SPACE}", drawn)


def setup(app):  # noqa: D103 - Sphinx's name
    app.connect("autodoc-process-docstring", escape)
    app.connect("source-read", draw)


napoleon_use_ivar = True  # a field is described where its class lists it, once
