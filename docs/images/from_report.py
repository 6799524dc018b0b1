#!/usr/bin/env python3
"""A chart of a report.html as a picture of its own, in the reader's light or dark colours.

    docs/images/from_report.py runs/train-fashion-cnn-001/report.html 'fp16: gradients of activations' > gradients.svg

Takes the wide form of the first chart whose title is TITLE, a margin around it, and the page's colours.
"""
import re
import sys

MARGIN_X, MARGIN_Y = 16, 12


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    report, title = sys.argv[1:]
    with open(report, encoding="utf-8") as file:
        page = file.read()
    charts = re.findall(r"<svg[^>]*>.*?</svg>", page, re.S)
    titles = [re.search(r"<title>(.*?)</title>", chart)[1] for chart in charts]
    if title not in titles:
        sys.exit(f"no chart of that title; seen: {title}; there are: {', '.join(dict.fromkeys(titles))}")
    chart = charts[titles.index(title)]
    style = re.search(r"<style>(.*?)</style>", page, re.S)[1]
    rules = [line.replace("media screen and", "media") for line in style.splitlines()
             if line.startswith((":root", "@media screen and (prefers-color-scheme:dark){:root", "svg "))]
    width, height = map(int, re.search(r'viewBox="0 0 (\d+) (\d+)"', chart).groups())
    wide, high = width + 2 * MARGIN_X, height + 2 * MARGIN_Y
    chart = chart.replace(f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"',
                          f'viewBox="-{MARGIN_X} -{MARGIN_Y} {wide} {high}" width="{wide}" height="{high}"')
    head = (f'<style>\n{chr(10).join(rules)}\nsvg .paper{{fill:var(--bg)}}\n</style>\n'
            f'<rect class="paper" x="-{MARGIN_X}" y="-{MARGIN_Y}" width="{wide}" height="{high}" fill="#ffffff"/>\n')
    print(re.sub(r"(</desc>\n)", lambda found: found[1] + head, chart, count=1))


main()
