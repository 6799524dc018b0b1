"""A page for each public header: its names with their comments, the page that explains its module, the examples that use it."""

import re
from pathlib import Path

import headers
import uses
from pygments.lexers import CppLexer
from pygments.token import Error

DIRECTIVES = {"class": "cpp:class", "struct": "cpp:struct", "function": "cpp:function", "variable": "cpp:member",
              "enum": "cpp:enum-class", "enumerator": "cpp:enumerator", "typedef": "cpp:type", "define": "c:macro"}


def underlined(title: str, line: str = "=") -> str:
    return f"{title}\n{line * len(title)}\n\n"


def indented(text: str, by: int = 3) -> str:
    return "\n".join(" " * by + line if line else "" for line in text.split("\n"))


def escaped(text: str) -> str:
    """A line of a comment as reStructuredText: what stands in backticks is code, everything else is itself."""
    parts = re.split(r"`([^`]+)`", text)
    for at, part in enumerate(parts):
        if at % 2:
            parts[at] = f"\\ ``{part}``\\ "
        else:
            parts[at] = re.sub(r"([\\*_|`<>])", r"\\\1", part)
    return "".join(parts)


def table(lines: list[str]) -> str:
    """A table of a comment. A row whose first cell is empty goes on from the row above."""
    rows = []
    for line in lines:
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            continue
        if rows and not cells[0]:
            rows[-1] = [f"{above} {cell}".strip() for above, cell in zip(rows[-1], cells)]
        else:
            rows.append(cells)
    text = ".. list-table::\n   :header-rows: 1\n\n"
    for row in rows:
        text += "   * - " + "\n     - ".join(escaped(cell) for cell in row) + "\n"
    return text


def code(text: str) -> str:
    is_cpp = all(kind is not Error for kind, _ in CppLexer().get_tokens(text)) and re.search(r"[;{}()]", text)
    return f".. code-block:: {'cpp' if is_cpp else 'text'}\n\n{indented(text)}\n"


def rst(says: str) -> str:
    """A comment as reStructuredText: paragraphs, lists, tables, and code, which is indented."""
    out, lines, at = [], says.split("\n"), 0
    while at < len(lines):
        end = at
        if not lines[at].strip():
            at += 1
            continue
        if lines[at].startswith("    "):
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            out.append(code("\n".join(line[4:] for line in lines[at:end]).rstrip()))
        elif re.match(r"\|[ -]", lines[at]):
            while end < len(lines) and re.match(r"\|[ -]", lines[end]):
                end += 1
            out.append(table(lines[at:end]))
        elif re.match(r"\s*- ", lines[at]):
            items = []
            while end < len(lines) and lines[end].strip():
                if re.match(r"\s*- ", lines[end]):
                    items.append(lines[end].strip()[2:])
                else:
                    items[-1] += " " + lines[end].strip()
                end += 1
            out.append("\n".join(f"- {escaped(item)}" for item in items) + "\n")
        else:
            while end < len(lines) and lines[end].strip() and not re.match(r"    |\|[ -]", lines[end]) \
                    and not (end > at and re.match(r"\s*- ", lines[end])):
                end += 1
            out.append(escaped(" ".join(line.strip() for line in lines[at:end])) + "\n")
        at = end
    return "\n".join(out)


def introduction(source: str) -> str:
    """What is said above the first namespace of a header, or at the top of one that opens none."""
    lines = source.split("\n")
    first = next((at for at, line in enumerate(lines) if line.startswith("namespace ")), len(lines))
    block = []
    for line in reversed(lines[:first]):
        if re.match(r"// (?!NOLINT|clang-format)", line):
            block.insert(0, line[3:])
        elif block or (line.strip() and first < len(lines)):
            break  # above a namespace nothing else may lie between
    return "\n".join(block)


def declared(name: headers.Name, scope: str) -> str:
    """The declaration, with the name as it is called where it stands."""
    text = name.text.replace(f"{scope}::", "", 1) if scope and f"{scope}::" in name.text else name.text
    if scope:
        short = name.name.rpartition("::")[2]
        text = name.text.replace(name.name, short, 1)
    return re.sub(r"\s+", " ", text)


class Page:
    def __init__(self, header: str, source: str, uncommented: dict[str, str]):
        self.header, self.lines, self.uncommented, self.wrong = header, source.split("\n"), uncommented, []

    def shares(self, group: list[headers.Name], name: headers.Name) -> bool:
        """Whether a name has the comment of the group right above it: an overload, a setter, a variable of the same line, or
        what that comment names."""
        first, above = group[0], group[-1]
        if above.line == name.line and above.kind == "variable" and above.says == name.says:
            return True
        between = self.lines[above.line - 1:name.line]
        if name.says or not first.says or first.is_behind or not all(line.strip() and not line.strip().startswith("//")
                                                                     for line in between):
            return False
        one, other = first.name.rpartition("::")[2], name.name.rpartition("::")[2]
        return other in (one, f"set_{one}", f"load_{one}") or re.search(rf"\b{re.escape(other)}\b", first.says) is not None

    def groups(self, names: list[headers.Name], outer: headers.Name | None):
        """Names under the comment that they share."""
        found: list[list[headers.Name]] = []
        for name in names:
            if name.is_special and not name.says:
                continue
            above = found[-1][-1] if found else None
            if above is not None and above.kind == name.kind and not name.inside and self.shares(found[-1], name):
                found[-1].append(name)
                continue
            found.append([name])
            if outer is not None and outer.name in self.uncommented:
                continue
            # Documented with what it is in: named in its comment, a constructor, a value of an enumeration of one line.
            named = outer is not None and f"`{name.name.rpartition('::')[2]}`" in outer.says
            constructor = outer is not None and outer.says and name.name == f"{outer.name}::{outer.name.rpartition('::')[2]}"
            one_line = outer is not None and outer.kind == "enum" and outer.says and self.lines[outer.line - 1].rstrip().endswith("};")
            if not name.says and not name.exempt and not named and not one_line \
                    and not constructor:
                self.wrong.append(f"{self.header}:{name.line}: {name.name} has no comment")
        return found

    def text(self, names: list[headers.Name], outer: headers.Name | None = None) -> str:
        scope = outer.name if outer is not None else ""
        out = ""
        for group in self.groups(names, outer):
            directive = DIRECTIVES[group[0].kind]
            head = f".. {directive}:: "
            signatures = ("\n" + " " * len(head)).join(declared(name, scope) for name in group)
            body = rst(group[0].says)
            inside = self.text(group[0].inside, group[0])
            out += f"{head}{signatures}\n\n" + indented(body + ("\n" if body else "") + inside) + "\n\n"
        return out


def label(header: str) -> str:
    return "api-" + re.sub(r"\W", "-", header)


def write_pages(root: Path, build: Path, tree, pages_of: dict[str, str]) -> tuple[list[str], set[str], dict[tuple[str, str], str]]:
    """A page for each module. Returns what is wrong, the headers that are shown, and a link to the header of each name."""
    modules, links = {}, {}
    found = headers.read(root, build / "doxygen")
    users = uses.users(root, found)
    pages = [path for path in (root / "README.md", *sorted(root.glob("docs/**/*.md"))) if path.parent.name != "decisions"]
    wrong = uses.complaints(root, users) + uses.unknown_names(root, found, pages)
    uncommented = uses.exceptions(root, "uncommented")
    for header, names in found.items():
        text = (root / header).read_text()
        page = Page(header, text, uncommented)
        out = f".. _{label(header)}:\n\n" + underlined(header, "-") + f".. code-block:: cpp\n\n   #include \"{header}\"\n\n"
        if users[header]:
            some = [f":doc:`{program} </{program}>`" for program in users[header][:5]]
            more = len(users[header]) - len(some)
            out += "Used by " + ", ".join(some) + (f" and {more} more :doc:`examples </examples/index>`" if more else "") + ".\n\n"
        out += rst(introduction(text)) + "\n" + page.text(names)
        wrong += page.wrong
        for name in names:
            for one in (name, *name.inside):
                links.setdefault((header.rpartition("/")[0], one.name.rpartition("::")[2]), f"[`{header}`](#{label(header)})")
        modules.setdefault(header.rpartition("/")[0], {})[header] = out
    index = underlined("API") + "The public headers, by module. What each module is for: :doc:`/docs/architecture`.\n\n"
    for library, target in (("demi", "demi::demi"), ("lab", "demi::lab")):
        index += underlined(target, "-") + ".. toctree::\n   :maxdepth: 1\n\n"
        for module, of_module in sorted(modules.items()):
            if module.partition("/")[0] != library:
                continue
            index += f"   {module}\n"
            out = underlined("demi/demi.h" if module == "demi" else module)
            if library == "lab":
                out += "Of the component ``lab``: ``find_package(demi COMPONENTS lab)``.\n\n"
            if module in pages_of:
                out += f"Purpose, numerics, cost and limits: :doc:`/{pages_of[module].removesuffix('.md')}`.\n\n"
            tree.write(f"api/{module}.rst", out + "\n".join(of_module.values()))
        index += "\n"
    tree.write("api/index.rst", index)
    return wrong, {header for of_module in modules.values() for header in of_module}, links
