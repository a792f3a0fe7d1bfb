"""The raw layers of Rust and Go, which other programs write: bindgen, and Go's own generator. Each
names the headers that it is of, by which it is known without these programs whether it is stale.
"""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from headers import MARK, ROOT, Headers

BINDGEN = "0.73.2"
COLUMNS = 147  # of documentation in Rust's, before the indent


class Failed(Exception):
    """A program failed. What it says is the text."""


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    environment = {"GOCACHE": str(ROOT / "build/go/cache")} | os.environ
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"{Path(command[0]).name} failed:\n{done.stderr.strip()}")
    return done.stdout


# ---- Rust

RUST = "bindings/rust/routecap-sys/src/bindings.rs"


def bindgen() -> str | None:
    """The program of the version that is wanted: that of dev/bindgen.sh, or an installed one."""
    for found in (ROOT / f"build/rust/bindgen-{BINDGEN}/bin/bindgen", shutil.which("bindgen")):
        if found and Path(found).exists() and run(found, "--version").split()[-1] == BINDGEN:
            return str(found)
    return None


def rust_lacks() -> list[str]:
    lacks = [] if bindgen() else [f"bindgen {BINDGEN} (bash dev/bindgen.sh builds it)"]
    return lacks + ([] if shutil.which("rustfmt") else ["rustfmt"])


def rust_digest() -> str:
    texts = [ROOT / "include/routecap.h", *sorted((ROOT / "include/routecap").glob("*.h"))]
    return hashlib.sha256(b"".join(each.read_bytes() for each in texts)).hexdigest()


def unmarked(text: str) -> str:
    """A header without the marks in its comments."""
    text = re.sub(rf"^ \*(?: +{MARK.pattern})+\n", "", text, flags=re.MULTILINE)
    return re.sub(
        rf" +/\*(?: +{MARK.pattern})+ \*/$|{MARK.pattern} ?", "", text, flags=re.MULTILINE
    )


def rust(headers: Headers) -> str:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        (copy / "routecap").mkdir()
        shutil.copy(ROOT / "include/routecap.h", copy)
        for each in (ROOT / "include/routecap").glob("*.h"):
            (copy / "routecap" / each.name).write_text(unmarked(each.read_text()))
        # All comments of the header are documentation, those behind a field too.
        options = "--rust-target 1.85 --rust-edition 2024 --use-core --with-derive-default"
        options += " --no-prepend-enum-name --disable-header-comment"
        program = bindgen()
        assert program
        raw = run(
            *(program, copy / "routecap.h", "--allowlist-item", "(routecap|ROUTECAP)_.*"),
            *(
                *options.split(),
                "--",
                f"-I{copy}",
                "-DROUTECAP_EXPERIMENTAL",
                "-fparse-all-comments",
            ),
        )
        source = copy / "bindings.rs"
        source.write_text("".join(rust_line(headers, line) for line in raw.splitlines()))
        style = ROOT / "bindings/rust/rustfmt.toml"
        run("rustfmt", "--edition", "2024", "--config-path", style, source)
        return f"// Of headers with the SHA-256 {rust_digest()}\n{source.read_text()}"


def rust_line(headers: Headers, line: str) -> str:
    """Two things that bindgen cannot be told: the types of constants, which C leaves to their use,
    and documentation in lines of ordinary length.
    """
    if match := re.match(r"pub const (ROUTECAP_\w+):", line):
        constant = next(each for each in headers.constants if each.name == match[1])
        kind = rust_type(constant.name, constant.text)
        number = re.sub(r"u?l*$", "", constant.text.strip("()").lower())
        return f"pub const {constant.name}: {kind} = {number};\n"
    match = re.match(r'( *)#\[doc = "(.*)"\]$', line)
    if match is None:
        return line + "\n"
    indent, text = match[1], match[2].replace('\\"', '"')
    if re.match(" *=====", text):  # the name of a section, not of what follows
        return ""
    made = ""
    for each in text.split("\\n"):
        rest = each.rstrip()
        if re.match("[^ ]", rest):
            rest = " " + rest
        while len(indent + rest) > COLUMNS:  # breaks at the last space that fits
            at = rest.rfind(" ", 1, COLUMNS - len(indent))
            at = at if at > 0 else COLUMNS - len(indent)
            made += f"{indent}///{rest[:at]}\n"
            rest = rest[at:]
        made += f"{indent}///{rest}\n"
    return made


def rust_type(name: str, text: str) -> str:
    """1u is a flag, 1ull a count, everything else an int but for versions and limits, which unsigned
    fields and arguments take.
    """
    text = text.lower()
    if text.endswith("ull"):
        return "u64"
    unsigned = text.endswith("u") or re.match("ROUTECAP_(VERSION|MAX|MIN|SERIALIZED)_", name)
    return "u32" if unsigned else "i32"


# ---- Go

GO = "bindings/go/zz_generated.go"


def go_lacks() -> list[str]:
    return [each for each in ("go", "clang") if not shutil.which(each)]


def go_digest() -> str:
    single = run("sh", ROOT / "dev/single.sh", ROOT / "include")
    return hashlib.sha256(single.encode()).hexdigest()


def go(headers: Headers) -> str:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "generated.go"
        run(
            "go",
            "run",
            "-trimpath",
            "./internal/generate",
            "-output",
            output,
            cwd=ROOT / "bindings/go",
        )
        return output.read_text()


# Of each layer what it is, its file, the programs that are not here, what its headers' digest is in
# its first lines, and its text.
LAYERS = {
    "rust": ("Rust's raw layer", RUST, rust_lacks, rust_digest, rust),
    "go": ("Go's raw layer", GO, go_lacks, go_digest, go),
}
