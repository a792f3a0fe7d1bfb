#!/usr/bin/env bash
# Runs the programs and commands of README.md and docs/, or of the pages that are named, as they
# stand.
#
#     bash tests/quick_starts/check.sh PREFIX [PAGE]...
#
# In the project's root, with the library that is installed under PREFIX. A page's story, which
# installs the library and its packages anew, is told if pages are named. What keeps pace with a
# device runs once more where nothing is filed before somebody waits, as beside a device that is
# slow, and then without its line that keeps pace: there steps must be lost.
. dev/setup.sh && . integrations/llama_cpp/setup.sh
set +e

use_library "${1:?usage: bash tests/quick_starts/check.sh PREFIX [PAGE]...}"
shift
stories=$#
[ $# != 0 ] || set -- README.md docs/*.md docs/guides/*.md tools/README.md
need cargo=cargo cc=gcc pkg-config=pkg-config
command -v go > /dev/null || { say "Go 1.24 or newer is needed"; exit 1; }
install_package && install_transformers || exit 1
work=$build/quick_starts
programs=$work/programs
export ROUTECAP_CHECKED=1 # a slip in the order of calls is an error
export GOCACHE=$build/go/cache GOMODCACHE=$build/go/modules GOFLAGS=-modcacherw
unset CARGO_TARGET_DIR
rm -rf "$programs" && mkdir -p "$work"
check "every block of code is marked" \
    python3 tests/quick_starts/snippets.py "$programs" "$@"
! grep -rq llama.h "$programs" || install_llama || exit 1

# compiled SOURCE LANGUAGE: makes SOURCE.run, a command without arguments.
compiled() {
    local folder=$1.module path=github.com/routecap/routecap/bindings/go
    case $2 in
        c)
            if grep -q llama.h "$1"; then link_llama "$1.run" "$1" integrations/llama_cpp/tap.c -Iintegrations/llama_cpp; else
                eval "cc -std=c11 -Wall -Wextra -Werror '$1' -o '$1.run' $(pkg-config --cflags --libs routecap)"
            fi ;;
        rust)
            mkdir -p "$folder/src" && cp "$1" "$folder/src/main.rs" && cat > "$folder/Cargo.toml" << END &&
[package]
name = "quick_start"
version = "0.0.0"
edition = "2024"
[workspace]
[dependencies]
routecap = { path = "$root/bindings/rust/routecap" }
END
                (cd "$folder" && cargo build --quiet --target-dir "$build/rust/target") &&
                cp "$build/rust/target/debug/quick_start" "$1.run" ;;
        go)
            mkdir -p "$folder" && cp "$1" "$folder/main.go" && printf \
                'module quick_start\ngo 1.24\nrequire %s v1.0.0\nreplace %s => %s\n' \
                $path $path "$root/bindings/go" > "$folder/go.mod" && (cd "$folder" && go build -o "$1.run" .) ;;
        python)
            printf '#!/usr/bin/env bash\nexec "%s" -W "${warnings:-error}" "%s"\n' "$python" "$1" > "$1.run" &&
                chmod +x "$1.run" ;;
    esac
}
# The programs that keep pace, and those of README.md, say at their end that nothing is missing.
complete='all there: 1|\(100, 48, 8\) \[\]|Complete 100 rows|ROUTECAP_OK 100 rows|3000 rows, 0 steps lost'
runs() { # SOURCE: LD_PRELOAD is for the program alone
    LD_PRELOAD=${slow:+$work/may_lose.so} PYTHONPATH=$package GGML_BACKEND_DIR=${llama_libraries:-} "$1.run" 2>&1
}
is_complete() { local output; output=$(runs "$1"); say "$output"; grep -q -E -x ".*($complete)" <<< "$output"; }
loses_steps() {
    local output
    output=$(runs "$1")
    say "$output"
    grep -q -E '[1-9][0-9]* steps lost|LostStepWarning|kind: Lost|ROUTECAP_LOST' <<< "$output"
}
# As in a shell of a user who has installed the library, with a home of its own.
commands() {
    mkdir -p "$work/home" &&
        env -u ROUTECAP_CHECKED -u LD_LIBRARY_PATH RUSTUP_HOME="${RUSTUP_HOME:-$HOME/.rustup}" \
            CARGO_HOME="${CARGO_HOME:-$HOME/.cargo}" HOME="$work/home" bash -e "$1"
}

# told SCRIPT: a page's story. Each of its programs says that it is complete.
told() {
    local output
    rm -rf "$work/home/first-rows"
    output=$(unset PKG_CONFIG_PATH; export CARGO_TARGET_DIR=$build/rust/target; commands "$1" 2>&1) ||
        { say "$output"; return 1; }
    say "$output"
    [ "$(grep -c -E -x ".*($complete)" <<< "$output")" = "$(grep -c "<< 'END_OF_FILE'" "$1")" ]
}

check "a capturer that may lose" bash -c "cc -shared -fPIC -std=c11 -Wall -Wextra -Werror \
    tests/quick_starts/may_lose.c -o '$work/may_lose.so' $(pkg-config --cflags routecap) -ldl"
while read -r name language with; do
    source=$programs/$name python=$build/package/tools/bin/python
    [ "$with" = transformers ] && python=$transformers_python
    case $language in
        sh) check "$name" commands "$source"; continue ;;
        story) [ "$stories" = 0 ] || check "$name" told "$source"; continue ;;
    esac
    check "$name: builds" compiled "$source" "$language"
    hasty=$programs/hasty/$name
    if [ -e "$hasty" ]; then
        check "$name: without the line that keeps pace: builds" compiled "$hasty" "$language"
        check "$name: nothing is lost" is_complete "$source"
        slow=1 check "$name: nothing is lost where steps are slow" is_complete "$source"
        slow=1 warnings=default check "$name: without the line that keeps pace steps are lost" loses_steps "$hasty"
    elif [[ $name == README* ]]; then
        check "$name: runs, nothing is missing" is_complete "$source"
    else
        check "$name: runs" runs "$source"
    fi
done < "$programs/list"
closing
