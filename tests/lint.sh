#!/usr/bin/env bash
# The layout of C++ by .clang-format and of Python by .ruff.toml; over the library .clang-tidy, and
# Clang's thread safety analysis: lint.sh, in the project's root.
. dev/setup.sh
set +e
need clang-format-14=clang-format-14 clang-tidy-14=clang-tidy-14 clang++-14=clang-14 cmake=cmake ninja=ninja-build \
    /usr/include/gtest/gtest.h=libgtest-dev /usr/include/nlohmann/json.hpp=nlohmann-json3-dev

mapfile -t sources < <(git ls-files ':!src/third_party' 'src/*.cc' 'src/*.h' 'kernels/*.h' 'kernels/*.cu' 'kernels/*.cuh')
units() { printf '%s\n' "${sources[@]}" | grep '\.cc$' | grep -v /cuda/; } # those that the preset dev compiles

python_environment "$build/ruff" ruff==0.17.6

# Without the compiler's own precompiled headers, which Clang cannot read.
check "compile commands" cmake --preset dev -B build/lint -DROUTECAP_PRECOMPILED=OFF
check "layout of Python" "$build/ruff/bin/ruff" format --check --quiet
check "layout" clang-format-14 --dry-run --Werror "${sources[@]}"
# Of all units but those that need the CUDA toolkit, in which there is no mutex.
check "threads" bash -c 'xargs -P "$1" -n 8 clang++-14 -std=c++20 -fsyntax-only -Iinclude -Isrc -I. -Wthread-safety \
    -Werror=thread-safety' - "$jobs" < <(units)
check "tidy" bash -c 'xargs -P "$1" -n 1 clang-tidy-14 -p build/lint --quiet' - "$jobs" < <(units)
closing
