"""The checks of the site on a tree of their own, each with what it must find and what it must let pass."""

import tempfile
import unittest
from pathlib import Path

import api
import errors
import headers
import pages
import uses

HEADER = """#pragma once

// Things that are counted.
namespace demi::things {

/// Sizes of a thing. `depth` is that of its box.
struct Sizes {
  int width = 0;  // in pixels
  int height = 0;
  int depth = 0;
  int first = 0, second = 0;  // both

 private:
  int hidden = 0;
};

/// How many: one | two.
enum class Count { one, two };

enum class Colour {
  red,  // as fire
  blue,
};

/// A thing:
///
///     Thing thing(3);
///
///   - it is counted;
///   - it is `kept`, as name_ is.
class DEMI_API Thing {
 public:
  explicit Thing(int of);
  ~Thing();
  Thing(const Thing&) = delete;
  /// Adds to it.
  void add(int more);
  void add(double more);
  int total() const;
  /// Its name.
  int name() const;
  void set_name(int to);
};

}  // namespace demi::things
"""


class Tree:
    def __init__(self):
        self.pages = {}

    def write(self, name, text):
        self.pages[name] = text


class Checks(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = Path(self.folder.name)
        self.put("demi/demi.h", "// Everything.\n#include \"demi/things/thing.h\"\n")
        self.put("demi/things/CMakeLists.txt", "demi_module(things NO_TORCH\n  PUBLIC thing.h TEST_LINK demi)\n")
        self.put("demi/things/thing.h", HEADER)
        self.put("demi/things/thing.cpp", "refuse({.where = \"things.add\", .what = \"no\"});\n")
        self.put("demi/kernels/rules/list.h", "")
        self.put("lab/CMakeLists.txt", "")
        self.put("cli/main.cpp", "")
        self.put("README.md", "")
        self.put("docs/site/exceptions.txt", "unused demi/demi.h: it has no names\n")
        self.put("examples/thing.cpp", "demi::things::Thing thing(3);\n")

    def put(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def complaints(self):
        self.tree = Tree()
        return api.write_pages(self.root, self.root / "build", self.tree, {"demi/things": "docs/reference/things.md"})[0]

    def names_without_comment(self):
        return [one.split(" ")[1] for one in self.complaints() if one.endswith("has no comment")]

    def test_names_without_a_comment(self):
        self.assertEqual(sorted(self.names_without_comment()), [
            "demi::things::Colour", "demi::things::Colour::blue", "demi::things::Sizes::height", "demi::things::Thing::total"])
        self.assertIn("demi/things/thing.h:9: demi::things::Sizes::height has no comment", self.complaints())

    def test_an_exception_for_the_members_of_a_class(self):
        self.put("docs/site/exceptions.txt", "unused demi/demi.h: none\nuncommented demi::things::Sizes: a table has them\n")
        self.assertNotIn("demi::things::Sizes::height", self.names_without_comment())

    def test_the_page_of_a_module(self):
        self.complaints()
        page = self.tree.pages["api/demi/things.rst"]
        self.assertIn("Things that are counted.", page)
        self.assertIn(":doc:`/docs/reference/things`", page)
        self.assertIn("Used by :doc:`examples/thing.cpp </examples/thing.cpp>`", page)
        self.assertIn("      Thing thing(3);", page)
        self.assertIn("- it is \\ ``kept``\\ , as name\\_ is.", page)
        self.assertRegex(page, r"cpp:function:: void add\(int more\)\n +void add\(double more\)\n\n +Adds to it\.")
        self.assertIn("in pixels", page)
        self.assertNotIn("hidden", page)
        self.assertNotIn("~Thing", page)

    def test_a_header_that_no_example_uses(self):
        self.put("examples/thing.cpp", "int main() {}\n")
        self.assertIn("demi/things/thing.h: no example uses it: write one, or say in docs/site/exceptions.txt why there is none",
                      self.complaints())
        self.put("docs/site/exceptions.txt", "unused demi/demi.h: none\nunused demi/things/: the program uses it\n")
        self.assertFalse([one for one in self.complaints() if "example" in one])

    def test_an_exception_that_is_none_any_more(self):
        self.put("docs/site/exceptions.txt", "unused demi/demi.h: none\nunused demi/things/thing.h: none\nunused demi/gone.h: none\n")
        self.assertEqual([one for one in self.complaints() if one.startswith("docs/site/exceptions.txt")], [
            "docs/site/exceptions.txt: demi/things/thing.h is used by examples/thing.cpp",
            "docs/site/exceptions.txt: demi/gone.h is no public header, and no folder of some"])

    def test_a_name_on_a_page_that_is_not_there(self):
        self.put("docs/guide/things.md", "`demi::things::Thing` and demi::things::Thing::add(1), not\n`demi::things::Thyng`.\n")
        self.assertIn("docs/guide/things.md:2: demi::things::Thyng is no public name", self.complaints())
        self.assertEqual(1, len([one for one in self.complaints() if one.startswith("docs/guide")]))

    def test_a_place_of_errors(self):
        self.assertEqual(errors.places(self.root), {"things.add": {"demi/things"}})
        text, wrong = errors.page(self.root, {"demi/things": "docs/reference/things.md"}, {})
        self.assertIn('<a id="things.add"></a>`things.add` | [things](/docs/reference/things.md)', text)
        self.assertEqual(wrong, [])
        self.assertEqual(errors.page(self.root, {}, {})[1],
                         ["errors: [things.add] is of demi/things, which no row of docs/README.md names"])

    def test_a_column_of_tests(self):
        table = "| option | test |\n|---|---|\n| `a` | `Thing.A` |\n\n| other | name |\n|---|---|\n| `b` | c |\n"
        self.assertEqual(pages.without_tests(table), "| option |\n|---|\n| `a` |\n\n| other | name |\n|---|---|\n| `b` | c |\n")

    def test_keywords_of_a_page(self):
        self.put("docs/a.md", "# A\n")
        self.put("docs/site/keywords.txt", "# what they are\ndocs/a.md: multi gpu\ndocs/b.md: ddp\ndocs/a.md:\n")
        words, wrong = pages.keywords(self.root)
        self.assertEqual(len(wrong), 2)
        self.assertIn("docs/site/keywords.txt:3: no page", wrong[0])
        self.assertEqual(words["docs/b.md"], ["ddp"])
        self.assertEqual(pages.with_keywords("# A\n", ["multi", "gpu"]),
                         '---\nmyst:\n  html_meta:\n    "keywords": "multi, gpu"\n---\n\n# A\n')
        self.assertEqual(pages.with_keywords("# A\n", []), "# A\n")

    def test_a_copy_for_doxygen_has_the_lines_of_the_header(self):
        self.assertEqual(len(headers.for_doxygen(HEADER).split("\n")), len(HEADER.split("\n")))

    def test_a_table_in_a_comment(self):
        self.assertEqual(api.rst("| a | b |\n|---|---|\n| 1 | two |\n|   | words |"),
                         ".. list-table::\n   :header-rows: 1\n\n   * - a\n     - b\n   * - 1\n     - two words\n")

    def test_a_norm_is_no_table(self):
        self.assertEqual(api.rst("|x - y| over |x|"), "\\|x - y\\| over \\|x\\|\n")


if __name__ == "__main__":
    unittest.main()
