suite(quick-starts default 78 bash tests/quick_starts/check.sh build/install)
suite(contributing full 540 bash tests/quick_starts/check.sh build/install CONTRIBUTING.md)
