#!/usr/bin/env bash
# Adds the site of this version to those of other versions, in the project's root:
#
#     bash dev/docs/site.sh FOLDER URL
#
# FOLDER is what the host serves, under URL. FOLDER/VERSION is made anew, other versions stay as
# they are, and FOLDER/index.html lists all, the newest first.
set -euo pipefail
folder=${1:?usage: bash dev/docs/site.sh FOLDER URL} url=${2:?usage: bash dev/docs/site.sh FOLDER URL}
version=$(sed -n -E 's/^#define ROUTECAP_VERSION_(MAJOR|MINOR|PATCH) ([0-9]+).*/\2/p' \
    include/routecap/base.h | paste -sd.)
ROUTECAP_DOCS_VERSIONS=$url bash dev/docs/build.sh
mkdir -p "$folder"
rm -rf "${folder:?}/$version"
cp -r build/docs/html "$folder/$version"
touch "$folder/.nojekyll" # GitHub's pages leave out folders that begin with "_" without it
{
    echo '<!doctype html><meta charset="utf-8"><title>routecap</title><h1>routecap</h1><ul>'
    find "$folder" -mindepth 1 -maxdepth 1 -name '[0-9]*' -printf '%f\n' | sort -rV |
        sed 's|.*|<li><a href="&/index.html">&</a></li>|'
    echo '</ul>'
} > "$folder/index.html"
echo "the site of $version is in $folder/$version"
