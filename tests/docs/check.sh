#!/usr/bin/env bash
# The pages: what they and the tests say of each other is so. With --site instead: the site that is
# made of them builds without a warning, and its links lead somewhere.
# usage: bash tests/docs/check.sh [--site], in the project's root
. dev/setup.sh
set +e

# The failures that tests name are those that lab/failures.md tells.
failures_are_told() {
    local told named
    told=$(grep -oE '^### F[0-9]+' lab/failures.md | grep -oE 'F[0-9]+' | sort -u)
    named=$(grep -rhoE 'TEST\(Scenario, F[0-9]+' tests/scenarios | grep -oE 'F[0-9]+' | sort -u)
    [ -z "$(comm -13 <(printf '%s\n' "$told") <(printf '%s\n' "$named"))" ] || return 1
    local name
    for name in $(grep -oE '`F[0-9]+_\w+`' lab/failures.md | tr -d '`'); do
        grep -rq "TEST(Scenario, $name)" tests/scenarios || { say "there is no test $name"; return 1; }
    done
}
# Files that pages name in the text are there.
files_are_there() {
    local file missing=0
    for file in $(grep -ohE '`(kernels|src|include|tests|examples|bindings|integrations|tools|dev|lab)/[A-Za-z0-9_./]+`' README.md CONTRIBUTING.md SECURITY.md docs/*.md \
        docs/guides/*.md tests/README.md integrations/*/*.md tools/README.md packaging/README.md lab/*.md dev/*.md | grep -vE 'NAME|VERSION' | tr -d '`' | sort -u); do
        [ -e "$file" ] || [ -e "$file.cc" ] || { say "there is no $file"; missing=1; }
    done
    return $missing
}
# Classes, fields and functions that the page of threads names are in src.
names_are_there() {
    local name missing=0
    for name in $(grep -ohE '`[A-Za-z]+::[A-Za-z_]+' docs/threading.md | tr -d '`' | sed 's/::/ /' | tr ' ' '\n' | sort -u); do
        grep -rqw "$name" src || { say "docs/threading.md: there is no $name"; missing=1; }
    done
    return $missing
}
# Doxygen goes on where its filter fails: every function has to be in the reference.
every_function() {
    local name missing=0
    for name in $(grep -oE '\broutecap_\w+;' src/routecap.map | tr -d ';' | sort -u); do
        grep -rq "id=\"c.$name\"" "$build/docs/html/reference/c" || { say "$name is not in the reference"; missing=1; }
    done
    return $missing
}
# Python's reference has what a class inherits from modules that are not in it.
every_base() {
    local name missing=0
    for name in Capturer.close Capturer.begin Capturer.finish_batch Routing.ids Routing.slice; do
        grep -rq "id=\"routecap.$name\"" "$build/docs/html/reference/python" || { say "$name is not in the reference"; missing=1; }
    done
    return $missing
}
# The matrix says that an adapter has changed since a run if its code did, and not if a comment did.
matrix_is_current() {
    local copy=$build/matrix file
    rm -rf "$copy" && mkdir -p "$copy/docs" "$copy/lab" &&
        cp lab/matrix.* "$copy/lab" && cp docs/conform.md "$copy/docs" && cp -r integrations "$copy" &&
        python3 lab/matrix.py --check || return 1
    # In the copy all runs are of the adapters as they are.
    python3 - "$copy/lab" << 'END' && python3 "$copy/lab/matrix.py" || return 1
import json, sys
sys.path.insert(0, sys.argv[1])
import matrix
runs = json.loads(matrix.DATA.read_text())
matrix.DATA.write_text(json.dumps([run | {"adapter": matrix.digest(run)} for run in runs]))
END
    file=$copy/integrations/transformers/src/routecap_transformers/_taps.py
    echo "# a comment" >> "$file" && python3 "$copy/lab/matrix.py" --check || return 1
    echo "more = 1" >> "$file" && ! python3 "$copy/lab/matrix.py" --check
}
# The table of trainers says what their runs and those of engines say, and nothing else.
trainers_are_current() {
    local copy=$build/trainers_page
    rm -rf "$copy" && mkdir -p "$copy/lab" "$copy/integrations/replay" && cp lab/matrix.json "$copy/lab" &&
        cp integrations/replay/trainers.* "$copy/integrations/replay" && python3 integrations/replay/trainers.py --check || return 1
    sed -i 's/"wrong": 0/"wrong": 1/' "$copy/integrations/replay/trainers.json" && ! python3 "$copy/integrations/replay/trainers.py" --check
}
# examples/ has short programs to copy, and docs/ has pages and pictures.
short_examples() { ! git ls-files examples | xargs wc -l | awk '$1 > 150 && $2 != "total"' | grep .; }
pages_alone() { ! git ls-files docs ':!docs/*.md' ':!docs/images/*' | grep .; }
short_readme() { [ "$(wc -c < README.md)" -le 7168 ]; }
# Lines end at 100 columns; tables, links and what programs wrote may be longer.
short_lines() {
    ! git ls-files '*.md' ':!lab/*/*' ':!tests/model/weights' ':!tests/*/golden' | xargs awk \
        'length > 100 && !/^\|/ && !/\]\(/ { print FILENAME ":" FNR ": " length }' 2>&1 | grep .
}

if [ "${1:-}" = --site ]; then
    check "the site builds without a warning" bash dev/docs/build.sh
    check "every function is in the C reference" every_function
    check "inherited methods are in the reference of Python" every_base
    check "links within the site" python3 tests/docs/links.py "$build/docs/html"
    closing
    exit
fi
check "README.md has at most 7 KB" short_readme
check "lines end at 100 columns" short_lines
check "examples have at most 150 lines" short_examples
check "docs/ has pages and pictures alone" pages_alone
check "the table of measurements is that of the results" python3 lab/evidence.py --check
check "the table of a large job is that of the results" python3 lab/large_job.py --check
check "the matrix of engines is that of its runs" matrix_is_current
check "the table of trainers is that of their runs" trainers_are_current
check "failures and the tests that name them" failures_are_told
check "files that pages name" files_are_there
check "names that the page of threads has" names_are_there
check "files, functions and options that pages name" python3 tests/docs/names.py
closing
