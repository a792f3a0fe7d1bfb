#!/usr/bin/env bash
# Checks the Rust crates against a library installed under PREFIX. To be run in the project's root:
#
#     bash bindings/rust/test.sh PREFIX           the tests
#     bash bindings/rust/test.sh --more PREFIX    bindgen, clippy, documentation, packages, benchmark
#
# The CUDA tests run with the fake driver of tests/fault. Left under build/rust: cuda_tests and, with
# --more, bench_rust, the programs to carry to another machine.
. dev/setup.sh
set +e
more=0
[ "${1:-}" = --more ] && more=1 && shift
installed=$(cd "${1:?usage: bash bindings/rust/test.sh PREFIX}" && pwd) || exit 1
work=$build/rust
rust=$root/bindings/rust
mkdir -p "$work"

need cargo=cargo cc=gcc pkg-config=pkg-config python3=python3
PKG_CONFIG_PATH=$(dirname "$(find "$installed" -name routecap.pc)")
LD_LIBRARY_PATH=$(dirname "$(find "$installed" -name libroutecap.so.1)")
export PKG_CONFIG_PATH LD_LIBRARY_PATH
export ROUTECAP_CHECKED=1 # a slip in the order of calls is an error
unset CARGO_TARGET_DIR # .cargo/config.toml has it
cd "$rust" || exit 1

passed=0 failed=0
check() { # NAME COMMAND...: one check
    local name=$1
    shift
    if "$@" > "$work/log" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        cat "$work/log"
        say "failed: $name"
    fi
}
# NAME COMMAND...: as many checks as its tests. A command that fails without a test that does, as
# one that does not compile, is one.
count() {
    local name=$1 status good bad
    shift
    "$@" > "$work/log" 2>&1
    status=$?
    good=$(sum_of passed) bad=$(sum_of failed)
    [ "$good$bad" != 00 ] || status=1
    [ "$status" = 0 ] || { cat "$work/log"; say "failed: $name"; [ "$bad" != 0 ] || bad=1; }
    passed=$((passed + good)) failed=$((failed + bad))
    say "$name: $good passed, $bad failed"
}
sum_of() { awk -v what="$1" '/^test result: / { for (i = 2; i <= NF; i++) if ($i ~ "^" what) sum += $(i - 1) } END { print sum + 0 }' "$work/log"; }

# built ARGUMENTS...: the path of the one program that cargo builds of them.
built() { cargo "$@" --no-run --message-format=json 2> "$work/log" | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1; }

if [ $more = 0 ]; then
    check "what is generated is of these headers" python3 "$root/dev/generate" --check --without rust --without go
    check "rustfmt" cargo fmt --all --check
    count "tests" cargo test --workspace --features routecap/ndarray --no-fail-fast
    check "example" cargo run --quiet --example worker_loop
    (cd "$root" && install_fake_driver)
    cuda=$(built test -p routecap --test cuda --features ndarray)
    if [ -x "$cuda" ]; then
        cp "$cuda" "$work/cuda_tests"
        LD_LIBRARY_PATH=$build/tests/fake:$LD_LIBRARY_PATH FAKE_CUDA_ABORT=1 count "CUDA tests" "$work/cuda_tests" --include-ignored
    else
        cat "$work/log"
        failed=$((failed + 1))
    fi
    say "$passed checks passed, $failed failed"
    [ "$failed" = 0 ]
    exit
fi

need c++=g++ cmake=cmake make=make
need_libclang
check "bindgen is built" bash "$root/dev/bindgen.sh"
check "what is generated is what the headers give" python3 "$root/dev/generate" --check --without go
check "clippy" cargo clippy --quiet --workspace --all-targets --features routecap/ndarray -- -D warnings
check "documentation, without the library" env -u PKG_CONFIG_PATH DOCS_RS=1 RUSTDOCFLAGS="-D warnings" CARGO_TARGET_DIR="$work/docs" \
    cargo doc --quiet --workspace --no-deps --features routecap/ndarray
check "documentation, without its features" env -u PKG_CONFIG_PATH DOCS_RS=1 RUSTDOCFLAGS="-D warnings" CARGO_TARGET_DIR="$work/docs" \
    cargo doc --quiet --workspace --no-deps

# Vectors with one wrong expectation each: every one fails. Those of abi.json are for C alone.
mutants() {
    local folder=$work/mutants all said
    rm -rf "$folder" && mkdir -p "$folder" && python3 "$root/tests/vectors/files.py" --mutate 200 "$folder" || return 1
    grep -l '"topic": "abi_' "$folder"/*.json | xargs -r rm
    all=$(find "$folder" -name '*.json' | wc -l)
    said=$(ROUTECAP_VECTORS=$folder cargo test --quiet -p routecap --features ndarray --test vectors -- --nocapture 2> /dev/null | grep ' vectors, ')
    echo "$said"
    [[ "$all" -gt 0 && "$said" == "$all vectors, "*" $all failures" ]]
}
check "the vectors' mutants are noticed" mutants

bench=$(built bench -p routecap --bench bench_rust)
check "benchmark" test -x "$bench"
[ -x "$bench" ] && cp "$bench" "$work/bench_rust"

# The packages alone, anywhere: with the sources that they contain, and no installed library. Once
# for each content.
rm -f "$work"/target/package/routecap*.crate # of another version
check "packages" rust_packages --quiet
outside() {
    local place crate content status
    content=$(for crate in "$work"/target/package/routecap*.crate; do
        tar -xzOf "$crate" --wildcards --exclude='*.cargo_vcs_info.json' '*'
    done | sha256sum)
    [ "$content" != "$(cat "$work/outside.ok" 2> /dev/null)" ] || return 0
    place=$(mktemp -d) || return 1
    for crate in "$work"/target/package/routecap*.crate; do tar -xzf "$crate" -C "$place" || return 1; done
    mkdir -p "$place/program/src"
    cp "$place"/routecap-[0-9]*/examples/worker_loop.rs "$place/program/src/main.rs"
    cat > "$place/program/Cargo.toml" << EOF
[package]
name = "program"
version = "0.0.0"
edition = "2024"
[dependencies]
routecap = { path = "$(echo "$place"/routecap-[0-9]*)", features = ["vendored"] }
[patch.crates-io]
routecap-sys = { path = "$(echo "$place"/routecap-sys-*)" }
EOF
    (cd "$place/program" && env -u PKG_CONFIG_PATH -u LD_LIBRARY_PATH ROUTECAP_CUDA=OFF CARGO_TARGET_DIR="$work/outside" cargo run)
    status=$?
    rm -rf "$place"
    [ $status = 0 ] && echo "$content" > "$work/outside.ok"
    return $status
}
check "a program with the packages alone" outside

say "$passed checks passed, $failed failed"
[ "$failed" = 0 ]
