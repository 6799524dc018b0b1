"""Sphinx reads build/site/source, which pages.py makes; scripts/site.sh calls both."""

import re
from pathlib import Path

root = Path(__file__).resolve().parents[2]
project = "demi"
author = "demi contributors"
copyright = "demi contributors; Apache-2.0"
release = version = re.search(r"project\(demi VERSION ([0-9.]+)", (root / "CMakeLists.txt").read_text())[1]

extensions = ["myst_parser"]
exclude_patterns = ["programs"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
primary_domain = "cpp"
highlight_language = "text"
nitpicky = False
myst_heading_anchors = 4
smartquotes = False

html_theme = "furo"
pygments_style = "friendly"
pygments_dark_style = "monokai"
html_title = f"demi {release}"
html_copy_source = False
html_show_sphinx = False
toc_object_entries = False  # each page has the tables of contents of all: with every name in them, the build takes four times as long


def setup(app):
    from sphinx.domains.cpp import CPPDomain

    class WithoutParameters(CPPDomain):
        """The search finds names of the API, not those of their parameters."""

        def get_objects(self):
            return (one for one in super().get_objects() if one[2] not in ("functionParam", "templateParam"))

    app.add_domain(WithoutParameters, override=True)
