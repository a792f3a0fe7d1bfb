#!/usr/bin/env bash
# Runs the quick starts of README.md: each 1,000 times round its loop, and nothing may be lost.
#
#     bash tests/quick_starts/check.sh PREFIX
#
# In the project's root, with the library that is installed under PREFIX. Each runs as it stands on
# the host backend, and once more where nothing is filed before somebody waits, as beside a device
# that is slow: the line that keeps pace is all that helps there. Without it steps must be lost.
. examples/setup.sh
set +e

use_library "${1:?usage: bash tests/quick_starts/check.sh PREFIX}"
need cargo=cargo cc=gcc pkg-config=pkg-config
command -v go > /dev/null || { say "Go 1.24 or newer is needed"; exit 1; }
install_package || exit 1
work=$build/quick_starts
programs=$work/programs
export ROUTECAP_CHECKED=1 # a slip in the order of calls is an error
export PYTHONDONTWRITEBYTECODE=1
export GOCACHE=$build/go/cache GOMODCACHE=$build/go/modules GOFLAGS=-modcacherw
unset CARGO_TARGET_DIR
rm -rf "$programs" && mkdir -p "$work"
python3 tests/quick_starts/programs.py README.md "$programs" || exit 1

c() { # SOURCE PROGRAM
    eval "cc -x c -std=c11 -Wall -Wextra -Werror '$1' -o '$2' $(pkg-config --cflags --libs routecap)"
}
rust() {
    local crate=$work/rust
    mkdir -p "$crate/src/bin" && cp "$programs/rust/kept" "$crate/src/bin/kept.rs" && cp "$programs/rust/hasty" "$crate/src/bin/hasty.rs" &&
        cat > "$crate/Cargo.toml" << END && (cd "$crate" && cargo build --quiet --target-dir "$build/rust/target")
[package]
name = "quick_start"
version = "0.0.0"
edition = "2024"
[workspace]
[dependencies]
routecap = { path = "$root/bindings/rust/routecap" }
END
}
go_program() { # SOURCE PROGRAM
    local folder=$2.module path=github.com/routecap/routecap/bindings/go
    mkdir -p "$folder" && cp "$1" "$folder/main.go" && printf 'module quick_start\ngo 1.24\nrequire %s v1.0.0\nreplace %s => %s\n' \
        $path $path "$root/bindings/go" > "$folder/go.mod" && (cd "$folder" && go build -o "$2" .)
}

# quick_start NAME KIND: runs it. LD_PRELOAD is for the program alone.
quick_start() {
    local program=$programs/$1/$2 preload=${slow:+$work/may_lose.so}
    case $1 in
        c*) LD_PRELOAD=$preload "$program.run" ;;
        rust) LD_PRELOAD=$preload "$build/rust/target/debug/$2" ;;
        go) LD_PRELOAD=$preload "$program.run" ;;
        python) LD_PRELOAD=$preload PYTHONPATH=$package "$build/package/tools/bin/python" -W "${warnings:-error}" "$program" ;;
    esac
}
nothing='issued 1000 lost 0 rows 3000 delivered 3000 overlapped 0 cells missing 0'
loses_nothing() {
    local output
    output=$(quick_start "$@" 2>&1)
    say "$output"
    [ "$output" = "$nothing" ]
}
# It counts lost steps, or ends with the error of the first.
loses_steps() {
    local output
    output=$(quick_start "$@" 2>&1)
    say "$output"
    grep -q -E 'lost [1-9]|is lost|kind: Lost|ROUTECAP_LOST' <<< "$output"
}

check "C: compiled" c "$programs/c/kept" "$programs/c/kept.run"
check "C on a GPU: compiled" c "$programs/c_cuda/kept" "$programs/c_cuda/kept.run"
check "C on a GPU, without the line: compiled" c "$programs/c_cuda/hasty" "$programs/c_cuda/hasty.run"
check "Rust: compiled" rust
for kind in kept hasty; do check "Go, $kind: compiled" go_program "$programs/go/$kind" "$programs/go/$kind.run"; done
check "a capturer that may lose" bash -c "cc -shared -fPIC -std=c11 -Wall -Wextra -Werror tests/quick_starts/may_lose.c -o '$work/may_lose.so' \
    $(pkg-config --cflags routecap) -ldl"

for name in c python rust go; do slow='' check "$name: as it stands nothing is lost" loses_nothing $name kept; done
for name in c_cuda python rust go; do
    slow=1 check "$name: nothing is lost where steps are slow" loses_nothing $name kept
    slow=1 warnings=ignore check "$name: without the line that keeps pace steps are lost" loses_steps $name hasty
done
closing
