suite(quick-starts default 78 bash tests/quick_starts/check.sh build/install)
suite(first-rows full 60 bash tests/quick_starts/check.sh build/install docs/start.md)
suite(contributing full 540 bash tests/quick_starts/check.sh build/install CONTRIBUTING.md)
