#!/usr/bin/env bash
# Builds the site into build/docs/html: bash dev/docs/build.sh, in the project's root. A warning is
# an error.
. dev/setup.sh

need doxygen=doxygen python3=python3
python_environment "$build/docs_tools" sphinx==9.0.4 breathe==5.1.0 furo==2025.12.19 myst-parser==5.2.0 \
    sphinx-autoapi==3.9.0
export ROUTECAP_DOCS=$build/docs
rm -rf "$ROUTECAP_DOCS"
mkdir -p "$ROUTECAP_DOCS/source"
git ls-files -z --cached --others --exclude-standard | tar --null --files-from=- --ignore-failed-read -cf - 2> /dev/null |
    tar -xf - -C "$ROUTECAP_DOCS/source"
doxygen dev/docs/Doxyfile
"$build/docs_tools/bin/sphinx-build" --quiet --fail-on-warning --keep-going -j auto -c dev/docs \
    "$ROUTECAP_DOCS/source" "$ROUTECAP_DOCS/html"
cp "$ROUTECAP_DOCS/html/README.html" "$ROUTECAP_DOCS/html/index.html"
say "the site is in build/docs/html"
