suite(docs default 6 bash tests/docs/check.sh)
suite(site full 120 bash tests/docs/check.sh --site)
