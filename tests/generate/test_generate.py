"""What dev/generate makes of headers that change: of all their sentences, and of what is added to
them. Each test has a copy of the tree, in which it runs the generator.

    python3 -m unittest discover tests/generate
    ROUTECAP_TEST_MORE=1 python3 -m unittest discover tests/generate    compiles Rust and Go too

Rust's and Go's raw layers are there if bindgen, Go and clang are.
"""

import ast
import os
import re
import runpy
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ["include", "dev", "src", "kernels", "docs", "bindings"]
FOLDERS += ["tests/abi", "tests/support", "tests/vectors"]
MORE = bool(os.environ.get("ROUTECAP_TEST_MORE"))

# What of a comment is no sentence: marks, Doxygen's words with the name of the parameter, [device],
# and what draws the comment.
KEPT = re.compile(
    r"@param\[[a-z,]+\] +\w+|@\w+(?:\([^)]*\))?:?|\[device\]|/\*\*?|\*/|\*|={4,}|-{4,}"
)


def reworded(header: str) -> str:
    """The header with another sentence in the place of each."""

    def comment(match: re.Match[str]) -> str:
        tokens = re.compile(rf"({KEPT.pattern})(?!\S)|\S+")
        return tokens.sub(lambda token: token[1] or "said", match[0])

    return re.sub(r"/\*.*?\*/", comment, header, flags=re.DOTALL)


def structure(name: str, text: str) -> str:
    """A file without its documentation, in which alone sentences may be: comments, and in Python
    texts that stand by themselves.
    """
    if name.endswith(".py"):
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                node.body = [
                    each
                    for each in node.body
                    if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
                ]
        return ast.dump(tree, indent=1)
    if name.endswith((".h", ".rs")):
        text = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
    if name.endswith((".h", ".rs", ".go")):  # Go's code in C stands in a comment
        text = re.sub(r"//.*", " ", text)
        text = " ".join(text.split())
    return text


def words(text: str) -> Counter[str]:
    return Counter(re.findall(r"[A-Za-z_]\w*", text))


class Tree(unittest.TestCase):
    def setUp(self) -> None:
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.root = Path(made.name)
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *FOLDERS],
            cwd=ROOT,
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():  # and not a link to a folder, nor deleted
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, self.root / name)
        (self.root / "build").mkdir()
        (self.root / "build/rust").symlink_to(ROOT / "build/rust")
        (self.root / "build/go").symlink_to(ROOT / "build/go")

    def change(self, name: str, before: str, after: str) -> None:
        path = self.root / "include/routecap" / name
        self.assertEqual(path.read_text().count(before), 1, f"{name}: {before}")
        path.write_text(path.read_text().replace(before, after))

    def generate(self, *options: str) -> tuple[int, list[str]]:
        """The exit status of the generator, and the lines that it prints but the last."""
        done = subprocess.run(
            [sys.executable, "dev/generate", "--without", "missing", *options],
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lines = [each for each in done.stdout.splitlines() if not each.endswith(" is left out")]
        return done.returncode, [each.removeprefix("generate: ") for each in lines]

    def write(self) -> tuple[list[str], list[str]]:
        """What the generator prints, and which raw layers it could not make, as there is no
        bindgen, Go or clang: these are of other headers then, and of nothing else it complains.
        """
        status, printed = self.generate()
        old = [name for name in RAW if f"{name} is of other headers" in printed]
        self.assertEqual(status, len(old) > 0, printed)
        complaints = [each for each in printed if not each.startswith("wrote ")]
        self.assertEqual(len(complaints), len(old), printed)
        return printed, old

    def check(self) -> tuple[int, list[str]]:
        """The same of --check, which looks at the digests of Rust's and Go's raw layers alone."""
        return self.generate("--check", "--without", "rust", "--without", "go")

    def structures(self) -> dict[str, str]:
        """Of all files that a generator could write."""
        found = {}
        for path in self.root.rglob("*"):
            name = str(path.relative_to(self.root))
            if path.is_file() and path.suffix in {".h", ".py", ".rs", ".go", ".map", ".txt", ".md"}:
                found[name] = structure(name, path.read_text())
        return found

    def run_in(self, *command: str, **environment: str) -> None:
        done = subprocess.run(
            command,
            cwd=self.root,
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.assertEqual(done.returncode, 0, f"{' '.join(command)}\n{done.stdout[-4000:]}")


class Sentences(Tree):
    """Rewording one sentence of base.h took "(waits)" from two functions of docs/threading.md."""

    def test_no_sentence_of_a_header_is_a_fact(self) -> None:
        before = self.structures()
        for path in (self.root / "include/routecap").glob("*.h"):
            text = path.read_text()
            path.write_text(reworded(text))
            self.assertGreater(path.read_text().count("said"), 20, path.name)
        printed, old = self.write()
        self.assertIn("wrote bindings/rust/routecap/src/declared.rs", printed)
        after = self.structures()
        self.assertEqual(before.keys(), after.keys())
        self.assertEqual([name for name in before if before[name] != after[name]], [])
        if not old:
            self.assertEqual(self.check(), (0, ["nothing is stale or forgotten"]))


class Layouts(unittest.TestCase):
    """Offsets in layout.txt are what compilers say. Python lays structs out by codes of its own."""

    def test_python_lays_structs_out_as_c_does(self) -> None:
        made = runpy.run_path(str(ROOT / "bindings/python/src/routecap/_layouts.py"))
        lines = (ROOT / "tests/abi/layout.txt").read_text().splitlines()
        at = {name: int(value.rstrip("u")) for name, value in map(str.split, lines)}
        short = {"u4": "I", "i4": "i", "u8": "Q", "i8": "q", "f4": "f"}
        found = {name: made[name] for name in made if f"routecap_{name}" in at}
        self.assertGreater(len(found), 40)
        for name, fields in found.items():
            parts = [field.split(":") for field in fields.split()]
            codes = [short.get(code, code) for _, code in parts]
            codes = ["I", *codes] if f"routecap_{name}.struct_size" in at else codes
            self.assertEqual(at[f"routecap_{name}"], struct.calcsize("@" + "".join(codes) + "0Q"))


class Marks(Tree):
    """A mark that is forgotten was a fact that vanished without a word."""

    def says(self, name: str, before: str, after: str, *parts: str) -> None:
        """The generator refuses this change, and names the file, the line and the member."""
        path = self.root / "include/routecap" / name
        text = path.read_text()
        line = text[: text.index(before)].count("\n") + 1
        self.change(name, before, after)
        status, printed = self.generate("--without", "rust", "--without", "go")
        self.assertNotEqual(status, 0)
        for part in [f"{name}:", *parts]:
            self.assertIn(part, printed[-1])
        said = int(printed[-1].split(":")[1])
        self.assertLessEqual(abs(said - line), 12, printed)  # of a function, where it is declared
        path.write_text(text)

    def test_a_mark_that_lacks_is_named(self) -> None:
        for name, mark, member in [
            ("base.h", "NOT_CAPTURED 5 /* @success @text: ", "ROUTECAP_NOT_CAPTURED"),
            ("base.h", "ROUTECAP_DTYPE_U16 3       /* @bytes(2)", "ROUTECAP_DTYPE_U16"),
            ("base.h", "ROUTECAP_MAX_K 32                      /* @number", "ROUTECAP_MAX_K"),
            ("base.h", "typedef uint64_t routecap_step; /* @handle", "routecap_step"),
            ("base.h", "routecap_role; /* @one_of(ROUTECAP_ROLE_*)", "routecap_role"),
            ("reading.h", "ROUTECAP_MISSING_DUPLICATE 4     /* @rank(10) ", "ROUTECAP_MISSING_DUP"),
            ("wire.h", "ROUTECAP_WIRE_NPY 2        /* @names(npy, .npy): ", "ROUTECAP_WIRE_NPY"),
            ("capture.h", "uint64_t requests_open;   /* @computed", "routecap_stats.requests_open"),
        ]:
            with self.subTest(member):
                lacking = re.sub(r"@.*", "", mark)
                self.says(name, mark, lacking, member)
        self.says("reading.h", " @of_cell: the same id", ": the same id", "MISSING_DUPLICATE")
        self.says(
            "capture.h",
            " * @thread(any)\n */\nROUTECAP_API ROUTECAP_NODISCARD routecap_status\nroutecap_capturer_progress(",
            " */\nROUTECAP_API ROUTECAP_NODISCARD routecap_status\nroutecap_capturer_progress(",
            "routecap_capturer_progress: it has no @thread",
        )

    def test_a_mark_that_is_none_is_named(self) -> None:
        self.says("reading.h", "@rank(10) ", "@ranks(10) ", "DUPLICATE: there is no mark @ranks")
        self.says("reading.h", "@rank(10) ", "@rank(ten) ", "DUPLICATE: @rank needs")
        self.says("reading.h", "@rank(10) ", "@rank(9) ", "has @rank(9) too")
        self.says(
            "capture.h", "/* @after(steps_issued): in", "/* @after(steps): in", "no field steps"
        )
        self.says(
            "base.h",
            "ROUTECAP_ROLE_OWNER 0    /* ",
            "ROUTECAP_ROLE_OWNER 0    /* @waits: ",
            "OWNER",
        )
        self.says(
            "capture.h", "/* Other counts. */", "/* Other counts. @computed */", "belongs to no"
        )
        opaque = "typedef struct routecap_plan routecap_plan;"
        self.says("plan.h", opaque, opaque + " /* @handle */", "belongs to no")


# What is added to the headers: the file, what it is put behind, and the text.
ADDED = [
    (
        "base.h",
        "valid */\n",
        "#define ROUTECAP_ADDED_SUCCESS 6 /* @success @text: added */\n",
    ),
    ("base.h", "#define ROUTECAP_ERR_INTERNAL (-500)\n", "#define ROUTECAP_ERR_ADDED (-501)\n"),
    (
        "base.h",
        "#define ROUTECAP_DTYPE_BF16 18 /* @bytes(2) */\n",
        "#define ROUTECAP_DTYPE_F8_ADDED 19 /* @bytes(1): added */\n",
    ),
    (
        "reading.h",
        "older generation;\n                                            see store.h */\n",
        "#define ROUTECAP_MISSING_ADDED 11 /* @rank(11) @of_cell: added */\n",
    ),
    (
        "capture.h",
        "was chosen; see\n                                              load.h */\n",
        "#define ROUTECAP_CONFIG_ADDED 64u /* added */\n",
    ),
    (
        "capture.h",
        "                                      {0, 1, 0, 1} */\n",
        "    uint64_t last_added; /* added */\n",
    ),
    (
        "capture.h",
        "routecap_step_issue describes */\n",
        "    uint64_t rows_added; /* @after(rows_issued): added */\n",
    ),
    (
        "capture.h",
        "ROUTECAP_API ROUTECAP_NODISCARD routecap_status\n"
        "routecap_capturer_progress(routecap_capturer *capturer);\n",
        "\n/**\n * Added.\n *\n * @param[in] capturer  The capturer.\n * @thread(forward)\n */\n"
        "ROUTECAP_API ROUTECAP_NODISCARD routecap_status\n"
        "routecap_step_added(routecap_capturer *capturer);\n",
    ),
]
SOURCES = {
    "include/routecap/table.h": ["(*step_added)(routecap_capturer *);"],
    "src/routecap.map": ["    routecap_step_added;\n"],
    "src/base/declared.h": [
        *("X(ROUTECAP_ADDED_SUCCESS)", "X(ROUTECAP_ERR_ADDED)", "X(ADDED, 11, true)"),
        *("X(ADDED, added)", "X(rows_added)", "X(step_added)"),
    ],
    "tests/abi/layout.txt": [
        *(
            "ROUTECAP_ADDED_SUCCESS 6\n",
            "ROUTECAP_ERR_ADDED -501\n",
            "ROUTECAP_DTYPE_F8_ADDED 19\n",
        ),
        *("ROUTECAP_CONFIG_ADDED 64\n", "routecap_stats.rows_added ", "routecap_api.step_added "),
    ],
    "tests/abi/symbols.txt": ["routecap_step_added@@"],
    "tests/support/declared.h": ["{ROUTECAP_MISSING_ADDED, ROUTECAP_MISSING_DUPLICATE,"],
    "tests/vectors/fields.h": ["FIELD(rows_added)"],
    "tests/vectors/calls.h": [
        *('{"step_added",', 'routecap_step_added(r.object<routecap_capturer>("capturer"))'),
    ],
    "bindings/go/zz_vectors_test.go": [
        'callsLike("step_added", (*Capturer).Added, "capturer", "")'
    ],
    "bindings/python/src/routecap/_constants.py": [
        *("    ADDED_SUCCESS = 6\n", "    ERR_ADDED = -501\n", "    ADDED = 11\n"),
        *("    ADDED = 64\n", "    F8_ADDED = 19\n", '"f8_added"'),
        "Missing.DUPLICATE, Missing.ADDED)",
    ],
    "bindings/python/tests/vector_calls.py": ['"step_added": ("capturer.added", "", "")'],
    "bindings/python/src/routecap/_counts.py": ["    rows_added: int\n"],
    "bindings/python/src/routecap/_switches.py": ["    added: bool\n"],
    "bindings/python/src/routecap/_layouts.py": ["rows_added:Q"],
    "bindings/rust/routecap/src/declared.rs": [
        *("Added = ROUTECAP_ERR_ADDED;", "Added = ROUTECAP_MISSING_ADDED;", "pub rows_added: u64,"),
        *('("added", sys::ROUTECAP_CONFIG_ADDED)', "F8Added = sys::ROUTECAP_DTYPE_F8_ADDED,"),
        *("DType::F8Added => 1,", "and [`Added`](Reason::Added) belong"),
    ],
    "bindings/rust/routecap/tests/vectors/calls.rs": ['"step_added" => {', "forward.added()"],
    "bindings/rust/routecap/tests/vectors/fields.rs": ["rows_added", "Config::added"],
    "docs/threading.md": ["`step_added`"],
}
RAW = {
    "bindings/rust/routecap-sys/src/bindings.rs": [
        "pub const ROUTECAP_ADDED_SUCCESS: i32 = 6;",
        "pub const ROUTECAP_CONFIG_ADDED: u32 = 64;",
        "pub rows_added: u64,",
        "pub fn routecap_step_added(",
    ],
    "bindings/go/zz_generated.go": [
        *("status == ROUTECAP_ADDED_SUCCESS", "ERR_ADDED", "case DTypeF8Added:\n\t\treturn 1\n"),
        *("RowsAdded ", "func routecap_step_added(", "ConfigAdded "),
    ],
}
FORGOTTEN = [
    "routecap_step_added is not in Python's package",
    "routecap_step_added is not in Rust's crate",
    "routecap_step_added is not in Go's package",
    "routecap_config.last_added is not in bindings/python/src/routecap/_config.py",
    "routecap_config.last_added is not in bindings/rust/routecap/src/config.rs",
    "routecap_config.last_added is not in bindings/go/capturer.go",
    "routecap_step_added is not among %by_one_thread in bindings/python/routecap.i",
    "ROUTECAP_MISSING_ADDED is not in docs/faq.md",
    "ROUTECAP_MISSING_ADDED is not in docs/load.md",
    "ROUTECAP_MISSING_ADDED is not in docs/format.md",
    "something is stale or forgotten",
]
PYTHON = """
import sys, types
routecap = types.ModuleType("routecap")
routecap.__path__ = ["bindings/python/src/routecap"]
sys.modules["routecap"] = routecap
from routecap import _constants, _counts, _layouts
assert _constants.Missing.ADDED == 11 and _constants.Status.ERR_ADDED == -501
assert _counts.Stats._fields[-1] == "rows_added"
"""
C = """
#include <routecap.h>
routecap_stats stats;
int added(void) { return stats.rows_added + ROUTECAP_ADDED_SUCCESS + ROUTECAP_DTYPE_F8_ADDED; }
"""
CPP = """
#include "base/shape.h"
#include "tests/support/declared.h"
#include "tests/vectors/fields.h"
static_assert(routecap::reason_rank(ROUTECAP_MISSING_ADDED) == 11);
static_assert(!routecap::is_row_reason(ROUTECAP_MISSING_ADDED));
static_assert(kBestFirst[0] == ROUTECAP_MISSING_ADDED);
"""


class Additions(Tree):
    """A success status, added as the recipe said, deleted all errors from declared.h and from
    Python's Status.
    """

    def test_what_is_added_to_the_headers_is_in_every_language_and_nothing_vanishes(self) -> None:
        before = self.structures()
        for name, behind, text in ADDED:
            self.change(name, behind, behind + text)
        printed, _ = self.write()
        raw = {name: RAW[name] for name in RAW if f"wrote {name}" in printed}
        for name, parts in (SOURCES | raw).items():
            text = (self.root / name).read_text()
            for part in parts:
                self.assertTrue(part in text, f"{name} lacks {part!r}")
        after = self.structures()
        for name, text in before.items():
            with self.subTest(name):
                self.assertEqual(words(text) - words(after[name]), Counter())
        if raw.keys() == RAW.keys():
            self.assertEqual(self.check(), (1, FORGOTTEN))
        self.compiles()
        if MORE:
            self.assertEqual(raw.keys(), RAW.keys(), "bindgen, go and clang are needed")
            self.compiles_more()

    def compiles(self) -> None:
        self.run_in(sys.executable, "-B", "-c", PYTHON)
        (self.root / "added.c").write_text(C)
        (self.root / "added.cc").write_text(CPP)
        warnings = ("-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-Iinclude")
        if shutil.which("cc"):
            self.run_in("cc", "-std=c11", *warnings, "added.c")
        if shutil.which("c++"):
            for source in ("added.cc", "src/base/status.cc", "src/capture/capturer.cc"):
                self.run_in("c++", "-std=c++20", *warnings, "-Isrc", "-I.", source)

    def compiles_more(self) -> None:
        """The crates and the package as they are: nobody calls what was added."""
        target = str(ROOT / "build/rust/target")
        self.run_in(
            *("cargo", "check", "--quiet", "--manifest-path", "bindings/rust/Cargo.toml"),
            DOCS_RS="1",
            CARGO_TARGET_DIR=target,
        )
        # The library lacks the function, which is no matter where nothing is run.
        self.run_in(
            *("go", "-C", "bindings/go", "build", "."),
            GOCACHE=str(ROOT / "build/go/cache"),
            CGO_CFLAGS=f"-I{self.root}/include",
            CGO_LDFLAGS="-Wl,--unresolved-symbols=ignore-all",
            PKG_CONFIG="true",
        )


if __name__ == "__main__":
    unittest.main()
