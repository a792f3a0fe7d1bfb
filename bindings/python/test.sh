#!/usr/bin/env bash
# Builds the Python package and checks it against an installed library. In the project's root:
#
#     bash bindings/python/test.sh PREFIX           the tests
#     bash bindings/python/test.sh --more PREFIX    every way to build a wheel, mypy, pyright, the
#                                                   vectors' mutants, the tests that are marked slow
#
# The wheel that is tested contains the library of PREFIX. What needs CUDA runs on the driver without
# a device of tests/fault. ROUTECAP_TORCH_PYTHON names a Python with PyTorch, in the place of one made
# under build/. Ends with one line and exit status 0 if all passed.
. dev/setup.sh
set +e
more=0
[ "${1:-}" = --more ] && more=1 && shift

prefix=$(realpath "${1:?the prefix of an installed library is missing}")
package=$root/bindings/python
work=$build/python_package
tools=$work/tools
library=$(find "$prefix" -name libroutecap.so.1)
export ROUTECAP_INCLUDE=$root/include
export ROUTECAP_CHECKED=1 # a slip in the order of calls is an error
mkdir -p "$work"

# ---- The tools

need python3=python3 cc=gcc c++=g++ pkg-config=pkg-config
need "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h"=python3-dev
metrics=prometheus-client==0.26.0
extras=(rich==15.0.0 matplotlib==3.11.2 safetensors==0.8.0 "$metrics" fsspec==2026.9.0)
# By default one environment does; the tools of --more want versions of their own.
python_environment "$work/tested" numpy==2.4.6 pytest==9.2.0 msgpack==1.2.4 "${extras[@]}"
checkers=(scikit-build-core==1.1.2 build==1.6.1 swig==4.5.1 cmake==4.4.4 ninja==1.13.2 numpy==2.4.6 pytest==9.2.0 \
    msgpack==1.2.4 auditwheel==6.8.2 abi3audit==0.0.26 mypy==2.4.1 pyright==1.1.414)
if [ $more = 1 ]; then
    python_environment "$tools" "${checkers[@]}" "${extras[@]}"
else
    tools=$work/tested
fi
# What writes and reads messages of the wire, for single functions of it: nothing of these is
# imported.
writers=$work/writers
if [ ! -e "$writers/ready" ]; then
    say "setup: fetching sglang, verifiers and megatron-core, without what they need"
    "$tools/bin/pip" install --quiet --disable-pip-version-check --no-deps --no-compile --ignore-requires-python --only-binary :all: \
        --target "$writers" "sglang==$(newest_of sglang)" verifiers==0.4.0 megatron-core==0.19.2 || exit 1
    touch "$writers/ready"
fi

torch_python=${ROUTECAP_TORCH_PYTHON:-}
[ -n "$torch_python" ] || install_torch
# The same client of Prometheus for it.
clients=$work/clients/$metrics
[ -e "$clients" ] || "$tools/bin/pip" install --quiet --disable-pip-version-check --no-deps --target "$clients" "$metrics" || exit 1

# wheel NAME SOURCE OPTION...: builds a wheel, of the package's folder or a source distribution, in
# a build folder of its own; afterwards `wheel` is its path.
wheel() {
    local name=$1 source=$2
    shift 2
    rm -rf "${work:?}/$name/wheel"
    check "the wheel $name is built" env PATH="$tools/bin:$PATH" "$tools/bin/pip" wheel --disable-pip-version-check --no-deps --no-build-isolation \
        -w "$work/$name/wheel" --config-settings=build-dir="$work/$name/cmake" "$@" "$source"
    wheel=$(ls "$work/$name"/wheel/routecap-*-cp311-abi3-*.whl 2> /dev/null)
    [ -n "$wheel" ] || { failed=$((failed + 1)); closing; exit 1; }
}
# in_empty_environment: installs $wheel where there is neither a compiler nor anything else, and
# runs the example and the command there.
in_empty_environment() {
    local empty=$work/empty
    rm -rf "$empty"
    python3 -m venv --without-pip "$empty" &&
        env -i HOME="$HOME" PATH="$empty/bin" "$tools/bin/pip" --python "$empty/bin/python" install --quiet --disable-pip-version-check --no-compile "$wheel" \
            "$build"/package/wheel/routecap_tools-*.whl &&
        (cd / && env -i PATH="$empty/bin" python -I "$package/examples/worker_loop.py" && env -i PATH="$empty/bin" routecap info)
}
# complete SDIST: what it holds of the library is what the project has.
complete() {
    local folder=$work/sdist/unpacked source
    mkdir "$folder" && tar -xzf "$1" -C "$folder" --strip-components=1 && [ -z "$(find "$folder" -type l)" ] || return 1
    for source in CMakeLists.txt include kernels src; do diff -r "$source" "$folder/vendor/$source" || return 1; done
}

# ---- Wheels

(install_package) || exit 1
if [ $more = 1 ]; then
    need node=nodejs readelf=binutils
    rm -rf "$work/sdist"
    check "the source distribution is made" env PATH="$tools/bin:$PATH" "$tools/bin/python" -m build --sdist --no-isolation -o "$work/sdist" "$package"
    sdist=$(ls "$work"/sdist/routecap-*.tar.gz 2> /dev/null)
    check "the source distribution has every source of the library, and no links" complete "$sdist"
    wheel sdist "$sdist" --config-settings=cmake.define.ROUTECAP_CUDA=OFF --config-settings=cmake.define.CMAKE_CXX_FLAGS_RELEASE=-O0
    check "the wheel built from the source distribution runs in an empty environment" in_empty_environment

    ROUTECAP_LIBRARY=$library wheel installed "$sdist"
    check "the wheel built from it over an installed library has none in it" bash -c "! python3 -m zipfile -l '$wheel' | grep -q libroutecap"
    PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name routecap.pc)") wheel pkgconfig "$package" --config-settings=cmake.define.ROUTECAP_PKGCONFIG=ON
    check "the wheel over the library that pkg-config finds works" in_empty_environment
    wheel bundled "$package" --config-settings=cmake.define.ROUTECAP_BUNDLE="$library"
    check "auditwheel finds system libraries only" bash -c "'$tools/bin/auditwheel' show '$wheel' | tee '$work/audit' && grep -q manylinux_ '$work/audit'"
    check "abi3audit finds the stable ABI of 3.11 only" "$tools/bin/abi3audit" --strict --assume-minimum-abi3 3.11 "$wheel"
else
    # The same that the examples have.
    wheel=$(ls "$build"/package/wheel/routecap-*.whl)
    for file in routecap/libroutecap.so.1 licenses/LICENSE routecap/py.typed; do
        check "the wheel has $file" bash -c "python3 -m zipfile -l '$wheel' | grep -q '$file'"
    done
fi
rm -rf "$work/unpacked"
for each in "$wheel" "$build"/package/wheel/routecap_*.whl; do python3 -m zipfile -e "$each" "$work/unpacked"; done
check "nothing in the wheel needs CUDA" bash -c "! readelf -d '$work/unpacked'/routecap/*.so* | grep -E 'NEEDED.*(cuda|nvidia|torch)'"

"$work/tested/bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall "$wheel" "$build"/package/wheel/routecap_tools-*.whl
python=$work/tested/bin/python

# ---- Types

if [ $more = 1 ]; then
    typos=(env -C "$package" MYPYPATH="$work/unpacked" python3 tests/type_checkers/check.py)
    check "mypy --strict finds nothing in a user's program" env -C "$package" MYPYPATH="$work/unpacked" "$tools/bin/mypy" --cache-dir "$work/mypy" examples
    check "mypy --strict finds nothing in the packages" env -C "$package" MYPYPATH=src "$tools/bin/mypy" --cache-dir "$work/mypy" \
        src/routecap "$root"/integrations/*/src/routecap_* "$root"/tools/src/routecap_*
    check "mypy finds every typo in a setting" "${typos[@]}" \
        "$tools/bin/mypy" --strict --cache-dir "$work/mypy"
    check "pyright finds every typo in a setting" "${typos[@]}" \
        "$tools/bin/pyright" --pythonpath "$work/tested/bin/python"
    check "pyright finds nothing" env -C "$package" "$tools/bin/pyright" --pythonpath "$work/tested/bin/python"
fi

# ---- Tests

# They write and remove thousands of small files, which wait for a disk that others use.
if [ -w /dev/shm ]; then
    TMPDIR=$(mktemp -d /dev/shm/routecap.XXXXXX)
    export TMPDIR
    trap 'rm -rf "$TMPDIR"' EXIT
fi
# every_mutant_fails: of 100 vectors that are wrong in one place, the replayer takes none.
every_mutant_fails() {
    rm -rf "$work/mutants" && mkdir "$work/mutants" && "$python" tests/vectors/files.py --mutate 100 "$work/mutants" || return 1
    ROUTECAP_VECTORS=$work/mutants "$python" -m pytest -p no:cacheprovider -q --tb=no -k vector_gives "$package/tests/test_vectors.py" \
        > "$work/mutants.log"
    tail -n 1 "$work/mutants.log" | grep '^100 failed' && ! tail -n 1 "$work/mutants.log" | grep passed
}
if [ $more = 1 ]; then
    tests "the installed library, named by ROUTECAP_LIBRARY" env PYTHONPATH="$writers" ROUTECAP_LIBRARY="$library" "$python" -m pytest "$package/tests/test_capturer.py"
    check "the replayer fails every vector that is wrong" every_mutant_fails
    check "the benchmark runs" "$python" "$package/bench_python.py"
    tests "what takes long" env PYTHONPATH="$writers" "$python" -m pytest -m slow "$package"/tests/test_*.py
    arrow=$work/clients/pyarrow==26.0.1
    [ -e "$arrow" ] || "$tools/bin/pip" install --quiet --disable-pip-version-check --no-deps --no-compile --target "$arrow" pyarrow==26.0.1 || exit 1
    tests "what takes long of the tools" env PYTHONPATH="$arrow" "$python" -m pytest -m slow tools/tests/test_*.py
    tests "what takes long with torch" env PYTHONPATH="$work/unpacked:$clients" "$torch_python" -m pytest -m slow "$root/integrations/vllm/tests"
    tests "what takes long of SGLang's adapter" env PYTHONPATH="$work/unpacked:$writers:$clients" "$torch_python" -m pytest -m slow "$root/integrations/sglang/tests"
    closing
    exit
fi

# What needs another interpreter than the tests of the wheel runs beside these, as both wait now and
# then.
others() {
    check "the wheel runs in an empty environment without compilers" in_empty_environment
    tests "torch" env PYTHONPATH="$work/unpacked:$writers" "$torch_python" -m pytest "$package/tests/torch_tensors"
    tests "the drop-in module" env PYTHONPATH="$work/unpacked:$clients" "$torch_python" -m pytest -m "not slow" "$root/integrations/vllm/tests"
    tests "SGLang's adapter" env PYTHONPATH="$work/unpacked:$writers:$clients" "$torch_python" -m pytest -m "not slow" "$root/integrations/sglang/tests"
}
counts=$work/others.counts
rm -f "$counts"
(passed=0 failed=0; others; echo $passed $failed > "$counts") > "$work/others.log" 2>&1 &
tests "the wheel" env PYTHONPATH="$writers" "$python" -m pytest -m "not slow" "$package"/tests/test_*.py
tests "the tools" "$python" -m pytest -m "not slow" tools/tests/test_*.py
install_fake_driver
tests "the CUDA backend" env LD_LIBRARY_PATH="$fake" FAKE_CUDA_ABORT=1 "$python" -m pytest "$package/tests/cuda"
tests "the tools on the CUDA backend" env LD_LIBRARY_PATH="$fake" FAKE_CUDA_ABORT=1 "$python" -m pytest tools/tests/cuda
wait
cat "$work/others.log"
ended=(0 1) # it did not come to its end
[ ! -e "$counts" ] || read -r -a ended < "$counts"
passed=$((passed + ended[0])) failed=$((failed + ended[1]))

closing
