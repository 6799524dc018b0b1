#!/usr/bin/env python3
"""Parses a report as a browser would, strictly: check_page.py report.html (sample_test writes one with DEMI_REPORT_SAMPLE=FOLDER).

Needs `pip install html5lib`. Fails on a parse error, on anything that would load from elsewhere, on a script or a style
attribute, and on a chart without title and description or a table without header cells.
"""
import sys
import xml.etree.ElementTree as xml

import html5lib

text = open(sys.argv[1], encoding="utf-8").read()
document = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(text)
loading = {"src", "href", "srcset", "data", "action", "style"}
for element in document.iter():
    if not isinstance(element.tag, str):
        continue
    names = {name.split("}")[-1] for name in element.attrib}
    assert element.tag not in ("script", "link", "img", "iframe", "object"), element.tag
    assert not names & loading and not any(name.startswith("on") for name in names), (element.tag, names)
style = "".join(element.text for element in document.iter("style"))
assert "url(" not in style and "@import" not in style

charts = text.split("<svg ")[1:]
for chart in charts:
    svg = xml.fromstring("<svg " + chart.split("</svg>")[0] + "</svg>")
    children = [child.tag.split("}")[-1] for child in svg[:2]]
    assert children == ["title", "desc"] and all(child.text for child in svg[:2]), children
for table in document.iter("table"):
    assert all(cell.attrib.get("scope") == "col" for cell in table.iter("th") if cell in table.find("thead/tr"))
print(f"{len(charts)} charts, {len(list(document.iter('table')))} tables, {len(text)} bytes: well-formed and self-contained")
