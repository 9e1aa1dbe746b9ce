"""What cells of notebooks print, whole: pieces of a stream are joined as they came.

A cell of shell passes on what it reads a hundred characters at a time; myst-nb would end a line
after each piece.
"""

from nbformat import NotebookNode
from sphinx.application import Sphinx


def join_streams(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Return outputs with one stream of each name, in the order in which they began."""
    joined: list[NotebookNode] = []
    streams: dict[str, NotebookNode] = {}
    for output in outputs:
        if output["output_type"] != "stream":
            joined.append(output)
        elif output["name"] in streams:
            streams[output["name"]]["text"] += output["text"]
        else:
            streams[output["name"]] = NotebookNode(output)
            joined.append(streams[output["name"]])
    return joined


def setup(app: Sphinx) -> dict[str, bool]:
    """Take the place of myst-nb's own function."""
    from myst_nb.core import render

    render.coalesce_streams = join_streams
    return {"parallel_read_safe": True}
