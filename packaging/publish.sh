#!/usr/bin/env bash
# Publishes the release that is in build/packaging/dist, for whoever has the accounts: twine's and
# cargo's settings say which. Run it on the commit with the tag, after packaging/check.sh.
#
#     bash packaging/publish.sh [--only python|rust|go] [--rehearse]
#
# --rehearse uploads nothing: twine and cargo check what they would upload, and the branch of the Go
# module and its tag stay in this clone. Registries other than the usual ones: TWINE_REPOSITORY_URL,
# CARGO_REGISTRY_DEFAULT; ROUTECAP_REMOTE is where branch and tag are pushed (origin).
cd "$(dirname "$0")/.." && . dev/setup.sh
families=(python rust go) rehearse=0
while [ $# -gt 0 ]; do
    case $1 in
        --only) families=("$2") && shift ;;
        --rehearse) rehearse=1 ;;
        *) say "publish: no option is called $1"; exit 2 ;;
    esac
    shift
done
dist=$build/packaging/dist
version=$(sed -n -E 's/^#define ROUTECAP_VERSION_(MAJOR|MINOR|PATCH) ([0-9]+).*/\2/p' include/routecap/base.h | paste -sd.)
(cd "$dist" && sha256sum --quiet -c SHA256SUMS)
[ $rehearse = 1 ] || [ "$(git tag --points-at HEAD "v$version")" ] || { say "publish: HEAD has no tag v$version"; exit 1; }

python() {
    local files=("$dist"/*.whl "$dist/routecap-$version.tar.gz" "$dist"/routecap_*-"$version".tar.gz)
    python_environment "$build/packaging/twine" twine==7.0.0
    "$build/packaging/twine/bin/twine" check --strict "${files[@]}"
    [ $rehearse = 1 ] && return
    # PyPI is known to say which files it has already; others refuse them.
    local skip=(--skip-existing)
    [ -z "${TWINE_REPOSITORY_URL:-}" ] || skip=()
    "$build/packaging/twine/bin/twine" upload --non-interactive "${skip[@]}" "${files[@]}"
}
# routecap needs routecap-sys of this version, which cargo waits for after its upload.
rust() {
    need cargo=cargo
    if [ $rehearse = 1 ]; then
        (cd bindings/rust && cargo publish --locked --dry-run --no-verify -p routecap-sys)
    else
        (cd bindings/rust && cargo publish --locked --no-verify -p routecap-sys && cargo publish --locked --no-verify -p routecap)
    fi
}
# A module is what its tag's commit has in the folder: there it is the released one, with the library
# as an object, and not the sources.
go() {
    local folder=bindings/go tag=bindings/go/v$version work=$build/packaging/go_branch
    rm -rf "$work" && mkdir -p "$work/proxy" && tar -xzf "$dist/routecap-$version-go.tar.gz" -C "$work/proxy"
    git worktree prune && git worktree add --quiet --detach "$work/tree" HEAD
    rm -rf "${work:?}/tree/$folder"
    python3 - "$work" "v$version" << 'END'
import pathlib, sys, zipfile
work, version = pathlib.Path(sys.argv[1]), sys.argv[2]
(archive,) = work.glob(f"proxy/**/@v/{version}.zip")
with zipfile.ZipFile(archive) as module:
    for name in module.namelist():
        path, _, inside = name.partition(f"@{version}/")
        to = work / "tree/bindings/go" / inside
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(module.read(name))
END
    git -C "$work/tree" add --all --force "$folder"
    git -C "$work/tree" commit --quiet -m "go: the module of $version, with the library in it"
    git tag -f "$tag" "$(git -C "$work/tree" rev-parse HEAD)"
    git worktree remove --force "$work/tree"
    [ $rehearse = 1 ] || git push "${ROUTECAP_REMOTE:-origin}" "$tag"
}
for family in "${families[@]}"; do
    say "-- $family"
    "$family"
done
