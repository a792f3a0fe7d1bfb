#!/usr/bin/env bash
# Which lines and branches of src/ and kernels/ the tests run, as a table of files: coverage.sh
# [--json FILE]
#
# A branch is one outcome of one condition. A template counts as that instance of it of which most
# was run. Kernels' bodies run on the host: in the host backend, in the driver that needs no device,
# and in the tests of them alone.
cd "$(dirname "$0")/.." && . dev/setup.sh
to=$build/coverage json=
[ "${1:-}" = --json ] && json=$2
need cmake=cmake ninja=ninja-build python3=python3 clang++-14=clang-14 llvm-cov-14=llvm-14 \
    "/usr/lib/llvm-14/lib/clang/14.0.6/lib/linux/libclang_rt.profile-$(uname -m).a=libclang-rt-14-dev" \
    /usr/include/gtest/gtest.h=libgtest-dev /usr/include/nlohmann/json.hpp=nlohmann-json3-dev
install_nvcc

# Counters are in files that processes map, so that nothing is lost of one that ends without running
# destructors. The run time complains where a program counts nothing: hence the last two entries of
# the list.
mkdir -p "$to"
printf '%s\n' '[clang]' "src:$root/src/*" 'src:*/kernels/*' 'src:*/tests/support/*' fun:main > "$to/instrumented"
flags="-O1 -fprofile-instr-generate -fcoverage-mapping -fprofile-update=atomic -fprofile-list=$to/instrumented -mllvm -runtime-counter-relocation"
cmake -S . -B "$to" -G Ninja -DCMAKE_C_COMPILER=clang-14 -DCMAKE_CXX_COMPILER=clang++-14 -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS="$flags" \
    -DROUTECAP_TESTS=ON -DROUTECAP_CUDA_ARCHS=90 > "$to/configure.log" || { cat "$to/configure.log"; exit 1; }
cmake --build "$to" -j "$jobs" > "$to/build.log" || { cat "$to/build.log"; exit 1; }
rm -rf "$to/profiles"
LLVM_PROFILE_FILE=$to/profiles/%c%m.profraw ctest --test-dir "$to" -j "$jobs" --output-on-failure --no-tests=error > "$to/ctest.log" 2>&1 ||
    { cat "$to/ctest.log"; exit 1; }
llvm-profdata-14 merge "$to"/profiles/*.profraw -o "$to/profile"
llvm-cov-14 export "$to/libroutecap.so" -object "$to/tests/fake/libcuda.so.1" -object "$to/tests/core" -instr-profile="$to/profile" -summary-only \
    "$root/src" "$root/kernels" > "$to/export.json" 2> "$to/export.log" || { cat "$to/export.log"; exit 1; }
python3 - "$root/" "$to/export.json" "$json" <<'END'
import json, sys

root, exported, to = sys.argv[1:]
with open(exported) as file:
    files = json.load(file)["data"][0]["files"]
table = {f["filename"].removeprefix(root): {what: {n: f["summary"][what][n] for n in ("covered", "count")} for what in ("lines", "branches")}
         for f in sorted(files, key=lambda f: f["filename"])}
for name, prefix in ("src", "src/"), ("kernels", "kernels/"), ("total", ""):
    inside = [counts for file, counts in table.items() if "/" in file and file.startswith(prefix)]
    table[name] = {what: {n: sum(c[what][n] for c in inside) for n in ("covered", "count")} for what in ("lines", "branches")}
for name, counts in table.items():
    figures = (f"{what} {c['covered']:5} of {c['count']:5} {100 * c['covered'] / c['count'] if c['count'] else 100:6.2f} %"
               for what, c in counts.items())
    print(f"{name:28}", *figures, sep="  ")
if to:
    with open(to, "w") as file:
        json.dump({"command": "bash tests/coverage.sh", "files": table}, file, indent=1)
END
