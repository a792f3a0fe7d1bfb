#!/usr/bin/env bash
# Makes a release: every artefact, their checksums and a bill of materials, under
# build/packaging/dist. Usage:
#
#     bash packaging/release.sh             # everything
#     bash packaging/release.sh wheels      # one family again: library, wheels, crates or go; the last three need the first
#
# Both processors are built here, on either, by zig's clang for glibc 2.28. The kernels are made by
# nvcc. packaging/README.md says what comes next.
cd "$(dirname "$0")/.." && . dev/setup.sh

work=$build/packaging
dist=$work/dist
processors=(x86_64 aarch64)
need git=git
version=$(sed -n -E 's/^#define ROUTECAP_VERSION_(MAJOR|MINOR|PATCH) ([0-9]+).*/\2/p' include/routecap/base.h | paste -sd.)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
mkdir -p "$dist"
zig_version=0.17.1
python_environment "$work/zig" ziglang==$zig_version
zig=$(echo "$work"/zig/lib/python3*/site-packages/ziglang/zig)
# zig's compiler runtime is one object, which has functions of libc and libm, too. Where something of
# it is linked, as for the long double of aarch64, its memcpy and expf would take the place of those
# that glibc has for the processor. So it is built without them: all others begin with "_".
sed -i "s/if (!builtin.is_test) @export(func/if (!builtin.is_test and name[0] == '_') @export(func/" "${zig%/*}/lib/compiler_rt.zig"
# toolchain PROCESSOR: what CMake is told of it.
toolchain() { printf '%s\n' "-DCMAKE_TOOLCHAIN_FILE=$root/packaging/zig.cmake" "-DROUTECAP_ZIG=$zig" "-DROUTECAP_PROCESSOR=$1"; }
# logged NAME COMMAND...: says when it starts. Its output goes to a file, and is shown if it fails.
logged() {
    local log=$work/$1.log
    say "$(date +%H:%M:%S) $1"
    shift
    "$@" > "$log" 2>&1 || { tail -n 60 "$log"; say "FAILED  ${log##*/}"; exit 1; }
}

families=("$@")
[ $# != 0 ] || { families=(library wheels crates go); rm -f "${dist:?}"/*; }
for family in "${families[@]}"; do
    say "-- $family"
    . "packaging/$family.sh"
done

python_environment "$work/sbom" cyclonedx-python-lib[json-validation]==11.12.0
(cd "$dist" && rm -f SHA256SUMS ./*.cdx.json && sha256sum -- * > "$work/artefacts.sha256")
"$work/sbom/bin/python" packaging/sbom.py "$version" "$zig_version" "$work/artefacts.sha256" "$dist/routecap-$version.cdx.json"
(cd "$dist" && sha256sum -- * > "$work/SHA256SUMS" && mv "$work/SHA256SUMS" . && ls -lh)
say "routecap $version is in build/packaging/dist"
