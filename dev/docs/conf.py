"""The site: README.md and docs/ as they are, the C reference from the headers, Python's from its
sources.

build.sh makes a copy of the repository, in which links between pages and to files work as they do
there, and runs Doxygen over the headers first. A link to a file that is no page is a download.
"""

import os
import pathlib
import re
import sys

root = pathlib.Path(__file__).resolve().parents[2]
stage = pathlib.Path(os.environ["ROUTECAP_DOCS"])
header = (root / "include/routecap.h").read_text()


def version_part(name: str) -> str:
    for file in [root / "include/routecap.h", *sorted((root / "include/routecap").glob("*.h"))]:
        if found := re.search(rf"#define ROUTECAP_VERSION_{name} (\d+)", file.read_text()):
            return found[1]
    raise ValueError(f"no header has ROUTECAP_VERSION_{name}")


project = "routecap"
author = "the routecap authors"
copyright = "2026, the routecap authors"
release = ".".join(map(version_part, ["MAJOR", "MINOR", "PATCH"]))

extensions = ["myst_parser", "breathe", "autoapi.extension"]
root_doc = "README"
include_patterns = [
    "*.md",
    "docs/**.md",
    "bindings/python/README.md",
    "bindings/go/README.md",
    "bindings/rust/routecap/README.md",
    "examples/README.md",
    "tests/model/**.md",
    "tests/README.md",
    "tests/vectors/README.md",
    "lab/**.md",
    "integrations/**.md",
    "tools/README.md",
    "packaging/README.md",
    "dev/recipes.md",
    "dev/generate/README.md",
    "reference/**",
]
suppress_warnings = [
    "autoapi.python_import_resolution",  # the module that SWIG makes is not there
    "ref.python",  # a field may have the name of a built-in type
]

myst_heading_anchors = 4

html_theme = "furo"
html_title = f"routecap {release}"
if versions := os.environ.get("ROUTECAP_DOCS_VERSIONS"):  # a URL, of dev/docs/site.sh
    html_theme_options = {
        "announcement": f'routecap {release} &middot; <a href="{versions}">all versions</a>'
    }
html_static_path = ["style.css"]
html_css_files = ["style.css"]
html_copy_source = False

primary_domain = "c"
highlight_language = "none"
breathe_projects = {"routecap": str(stage / "xml")}
breathe_default_project = "routecap"
breathe_domain_by_extension = {"h": "c"}
breathe_show_include = False
breathe_show_define_initializer = True

autoapi_dirs = [
    str(root / each / f"routecap{name}")
    for each, name in [
        ("bindings/python/src", ""),
        ("tools/src", "_tools"),
        *((f"integrations/{name}/src", f"_{name}") for name in ("vllm", "sglang", "transformers")),
    ]
]
sys.path.insert(0, str(root / "bindings/python/src"))  # where base classes are looked for
autoapi_root = "reference/python"
autoapi_add_toctree_entry = False
autoapi_options = [
    "members",
    "inherited-members",
    "undoc-members",
    "show-module-summary",
    "imported-members",
]
autoapi_python_class_content = "class"
autoapi_keep_files = False
PYTHON = re.compile(
    r"(routecap(\.(adapter|analysis|art|experts|log|models|names|skyrl|torch))?"
    r"|routecap_tools(\.(conform|doctor|page|plot|traces))?|routecap_(sglang|transformers|vllm))(\.[A-Za-z]\w*)*"
)
PYTHON_ELSEWHERE = re.compile(
    r"routecap_vllm\.routed_experts_capturer|routecap_tools\.command"
)  # vLLM's names; a program

NAVIGATION = """
```{toctree}
:hidden:
:caption: Start

docs/start
docs/install
docs/concepts
docs/faq
```
```{toctree}
:hidden:
:caption: My engine

docs/guides/own_loop
docs/guides/accelerators
integrations/vllm/README
integrations/sglang/README
integrations/transformers/README
integrations/llama_cpp/README
integrations/llama_cpp/server/README
integrations/ollama/README
integrations/candle/README
integrations/deepep/README
docs/store
docs/models
examples/README
tests/model/README
tests/model/weights/report
```
```{toctree}
:hidden:
:caption: My trainer

integrations/replay/trainers
docs/do_i_need_this
docs/experts
integrations/replay/README
docs/sequence
docs/plan
docs/remote
docs/wire
docs/doctor
docs/conform
lab/matrix
```
```{toctree}
:hidden:
:caption: Operators

docs/load
docs/diagnostics
```
```{toctree}
:hidden:
:caption: How it works

docs/architecture
docs/threading
docs/format
```
```{toctree}
:hidden:
:caption: Reference

reference/c
Python classes <reference/python/routecap/index>
reference/python/routecap_tools/index
reference/python/routecap_vllm/index
reference/python/routecap_sglang/index
reference/python/routecap_transformers/index
Python package <bindings/python/README>
Tools <tools/README>
Rust crate <bindings/rust/routecap/README>
Go package <bindings/go/README>
rustdoc and go doc <docs/references>
docs/compatibility
```
```{toctree}
:hidden:
:caption: Evidence

docs/performance
lab/README
lab/evidence
lab/failures
Replay, measured <lab/results/replay_h200>
Replay in training <lab/frontier/README>
Its tables <lab/frontier/results/report>
```
```{toctree}
:hidden:
:caption: Work on it

docs/roadmap
lab/upstream/auxiliary_outputs
lab/upstream/self_describing_object
packaging/README
tests/README
tests/vectors/README
dev/recipes
dev/generate/README
CONTRIBUTING
SECURITY
CHANGELOG
```
"""


def chapters() -> list[str]:
    """The headers in the order in which routecap.h includes them, itself first."""
    return ["routecap.h", *re.findall(r'#include "(routecap/\w+\.h)"', header)]


def write_c_reference() -> None:
    folder = stage / "source/reference"
    (folder / "c").mkdir(parents=True, exist_ok=True)
    names = []
    for chapter in chapters():
        name = pathlib.Path(chapter).stem + ("_h" if chapter == "routecap.h" else "")
        names.append(name)
        file = pathlib.Path(chapter).name  # breathe knows files by it
        page = f"{chapter}\n{'=' * len(chapter)}\n\n.. doxygenfile:: {file}\n"
        (folder / "c" / f"{name}.rst").write_text(page)
    toc = "\n".join(f"   c/{name}" for name in names)
    intro = (
        "C functions\n===========\n\nA program includes ``routecap.h``, which includes every"
        " chapter. The headers are the manual:\nthis is what they say.\n\n.. toctree::\n\n"
    )
    (folder / "c.rst").write_text(intro + toc + "\n")


def navigation(app, name: str, source: list[str]) -> None:
    """What a page on a public host has no use for, or a site: titles, the navigation; no links to
    folders.
    """
    folder = (stage / "source" / name).parent
    source[0] = re.sub(
        r"\[([^]]+)\]\(([^)#:]+)\)",
        lambda link: link[1] if (folder / link[2]).is_dir() else link[0],
        source[0],
    )
    if app.env.doc2path(name).suffix == ".md" and not re.search("^# ", source[0], re.M):
        source[0] = f"# {pathlib.Path(name).name}\n\n{source[0]}"
    if name == "README":
        source[0] += NAVIGATION


def as_rst(text: str) -> str:
    """A docstring, which is plain text: blocks with indented lines are kept as they are laid out."""
    made = []
    for block in re.split(r"\n{2,}", text.strip()):
        lines = block.splitlines()
        if any(line.startswith(" ") for line in lines) and not lines[0].startswith("- "):
            made.append("::\n\n" + "\n".join("    " + line for line in lines))
        else:
            texts_and_code = re.split(r"`+([^`]+)`+", block)
            texts_and_code[::2] = [
                re.sub(r"([*`|]|_\b)", r"\\\1", text) for text in texts_and_code[::2]
            ]
            texts_and_code[1::2] = [f"``{code}``" for code in texts_and_code[1::2]]
            made.append("".join(texts_and_code))
    return "\n\n".join(made)


def python_member(app, what: str, name: str, item, skip: bool, options) -> bool:
    """Whether to leave it out."""
    item.docstring = as_rst(item.docstring or "")
    return skip or PYTHON.fullmatch(name) is None or PYTHON_ELSEWHERE.match(name) is not None


def setup(app) -> None:
    write_c_reference()
    app.connect("source-read", navigation)
    app.connect("autoapi-skip-member", python_member)
