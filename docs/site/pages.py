"""Makes the source tree that Sphinx reads: the pages as they are, and those that are generated of headers, examples and errors.

    pages.py ROOT BUILD      fills BUILD/source. Exit codes: 0 done, 1 a public name without a comment, a header that no
example uses, a name on a page that is not public, a place of errors that no page explains, or keywords of no page
"""

import re
import sys
from pathlib import Path

import api
import errors

PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md", "docs/images/*.svg", "docs/guide/*.md", "docs/reference/*.md",
         "docs/decisions/*.md", "benchmarks/results/*.md")


def index_of_docs(root: Path):
    """The tables of docs/README.md: [(title, [page])], and {module: page}."""
    parts, pages_of = [("Overview", [])], {}
    for line in (root / "docs/README.md").read_text().split("\n"):
        if line.startswith("## "):
            parts.append((line[3:], []))
        row = re.match(r"\| \[[^\]]*\]\(([^)]+)\) \|(.*)", line)
        if row:
            page = str((root / "docs" / row[1].partition("#")[0]).resolve().relative_to(root.resolve()))
            parts[-1][1].append(page)
            for module in re.findall(r"`((?:demi|lab)/\w+|cli)`", row[2].partition("|")[0]):
                pages_of.setdefault(module, page)
    return parts, pages_of


class Tree:
    """The files that Sphinx reads. One that would be the same is not written: Sphinx reads again what is newer than its last build."""

    def __init__(self, folder: Path):
        self.folder, self.files = folder, set()

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        self.files.add(path)
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def remove_others(self) -> None:
        for path in self.folder.rglob("*"):
            if path.is_file() and path not in self.files:
                path.unlink()


def toctree(caption: str, pages: list[str], depth: int = 1) -> str:
    entries = "\n".join(re.sub(r"(^|<)([^<>]+)\.(?:md|rst)", r"\1/\2", page) for page in pages)
    return f"```{{toctree}}\n:caption: {caption}\n:maxdepth: {depth}\n:hidden:\n\n{entries}\n```\n\n"


def without_tests(text: str) -> str:
    """The page without the last column of tables that name a test, which says nothing to a user."""
    lines, drops = [], False
    for line in text.split("\n"):
        drops = line.startswith("|") and (drops or line.endswith("| test |"))
        lines.append(re.sub(r"\|[^|]*\|$", "|", line) if drops else line)
    return "\n".join(lines)


def with_links(text: str, headers_of_site: set[str], programs: set[str]) -> str:
    """A page whose links to sources, and to folders of headers, lead to their pages on the site."""
    modules = {header.rpartition("/")[0] for header in headers_of_site}

    def target(match):
        name = match[2]
        if name in modules:
            return f"](/api/{name}.rst)"
        if name in headers_of_site:
            return f"](#{api.label(name)})"
        return f"](/{name}.rst)" if name in programs else match[0]
    # Several headers in one word become one word each, which can lead to its place.
    text = re.sub(r"`([\w/]+)\{([\w,\s]+)\}\.h`",
                  lambda match: ", ".join(f"`{match[1]}{name.strip()}.h`" for name in match[2].split(",")), text)
    # A link that shows the name of a file shows the title there.
    text = re.sub(r"\[[\w./]+\.md\]\((?=[^)]*\.md)", "[](", text)
    # A number and its unit stay on one line of a table's cell.
    lines = [re.sub(r"(?<=\d) (?=(?:×|ms|s|µs|GB|MB|kB|%)(?:\W|$))", "\u00a0", line)
             if line.startswith("|") and "`" not in line else line for line in text.split("\n")]
    text = "\n".join(lines)
    return re.sub(r"\]\(((?:\.\./)*)((?:demi|lab|examples)/[\w/]+(?:\.(?:h|cpp|py))?)\)", target, text)


def keywords(root: Path):
    """Of docs/site/keywords.txt: ({page: its words}, [what is wrong])."""
    words, wrong = {}, []
    for number, line in enumerate((root / "docs/site/keywords.txt").read_text().split("\n"), 1):
        if not line or line.startswith("#"):
            continue
        page, _, listed = line.partition(":")
        words[page] = listed.split()
        if not (root / page).is_file() or not words[page]:
            wrong.append(f"docs/site/keywords.txt:{number}: no page of that name, or no words: {line}")
    return words, wrong


def with_keywords(text: str, words: list[str]) -> str:
    """The page with words that the search finds it by."""
    return f'---\nmyst:\n  html_meta:\n    "keywords": "{", ".join(words)}"\n---\n\n{text}' if words else text


def examples(root: Path, tree: Tree) -> list[str]:
    """A page for each program of examples/, with the file that is compiled and run as a test."""
    pages = []
    for path in sorted([*root.glob("examples/*.cpp"), *root.glob("examples/*.py"), *root.glob("examples/*/**/*.cpp"),
                        *root.glob("examples/*/**/*.h")]):
        name = str(path.relative_to(root))
        language = "python" if name.endswith(".py") else "cpp"
        tree.write(f"programs/{name}", path.read_text())
        tree.write(f"{name}.rst", f":orphan:\n\n{name}\n{'=' * len(name)}\n\n.. literalinclude:: /programs/{name}\n   :language: {language}\n")
        pages.append(name)
    return pages


def main(root: Path, build: Path) -> int:
    tree = Tree(build / "source")
    parts, pages_of = index_of_docs(root)
    wrong, shown, names = api.write_pages(root, build, tree, pages_of)
    text, without_page = errors.page(root, pages_of, names)
    tree.write("errors.md", text)
    programs = examples(root, tree)
    words, unknown = keywords(root)
    for pattern in PAGES:
        for path in root.glob(pattern):
            name = str(path.relative_to(root))
            text = with_links(without_tests(path.read_text()), shown, set(programs))
            if name == "README.md":  # of three entries called demi
                text = text.replace("# demi\n", "# What demi is and gains\n", 1)
            tree.write(name, with_keywords(text, words.get(name, [])))
    listed = {page for _, pages in parts for page in pages}
    text = (root / "docs/site/index.md").read_text()
    text += toctree("Start", ["Overview <README.md>", "docs/README.md", "errors.md", "CHANGELOG.md"])
    for title, pages in parts[1:]:
        text += toctree(title, pages)
    text += toctree("API and examples", ["api/index.rst", "examples/index.md"])
    decisions = sorted(str(path.relative_to(root)) for path in root.glob("docs/decisions/*.md"))
    results = sorted(str(path.relative_to(root)) for path in root.glob("benchmarks/results/*.md"))
    text += toctree("Design", [page for page in ("docs/architecture.md", "docs/scaling.md", "docs/published_results.md",
                                                "docs/licences.md", "CONTRIBUTING.md") if page in listed] + decisions)
    text += toctree("Results", results)
    tree.write("index.md", text)
    tree.write("examples/index.md", "# Examples\n\nEach program is compiled and run as a test.\n\n"
               + "".join(f"- [{name}](/{name}.rst)\n" for name in programs))
    tree.remove_others()
    wrong += without_page + unknown
    for complaint in wrong:
        print(complaint, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()))
