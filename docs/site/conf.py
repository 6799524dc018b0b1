"""Sphinx reads build/site/source, which pages.py makes; scripts/site.sh calls both."""

import re
from pathlib import Path

from docutils import nodes
from sphinx import addnodes

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
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["copy.js"]
html_favicon = "static/favicon.svg"
html_search_scorer = str(root / "docs/site/scorer.js")
html_copy_source = False
html_show_sphinx = False
toc_object_entries = False  # each page has the tables of contents of all: with every name in them, the build takes four times as long


def places_of(app):
    """Where the site shows what a page writes as code: demi::NAME, a header, a program of examples/."""
    places = {}
    for name, _, kind, docname, anchor, _ in app.env.domains.cpp_domain.get_objects():
        places.setdefault(name, (docname, anchor))
    for label, (docname, anchor) in app.env.domains.standard_domain.anonlabels.items():
        if label.startswith("api-"):
            places[label] = (docname, anchor)
    for docname in app.env.all_docs:
        if docname.startswith("examples/"):
            places[docname] = (docname, "")
    return places


def link_code(app, doctree, docname):
    """Names in running text lead to their places."""
    if not hasattr(app, "demi_places"):
        app.demi_places = places_of(app)
    for literal in list(doctree.findall(nodes.literal)):
        text = literal.astext()
        name = re.sub(r"\(.*\)$", "", text)
        name = "api-" + re.sub(r"\W", "-", name) if name.endswith(".h") else name
        place = app.demi_places.get(name) or app.demi_places.get(f"examples/{name}")
        inside = literal.parent
        while inside is not None and not isinstance(inside, (nodes.reference, nodes.title, addnodes.desc_signature)):
            inside = inside.parent
        if place is None or inside is not None or place[0] == docname:
            continue
        uri = app.builder.get_relative_uri(docname, place[0]) + (f"#{place[1]}" if place[1] else "")
        reference = nodes.reference("", "", internal=True, refuri=uri)
        literal.replace_self(reference)
        reference += literal


def setup(app):
    from sphinx.domains.cpp import CPPDomain

    app.connect("doctree-resolved", link_code)

    class WithoutParameters(CPPDomain):
        """The search finds names of the API, not those of their parameters."""

        def get_objects(self):
            return (one for one in super().get_objects() if one[2] not in ("functionParam", "templateParam"))

    app.add_domain(WithoutParameters, override=True)
