suite(python default 150 bash bindings/python/test.sh build/install)
suite(python-more full 360 bash bindings/python/test.sh --more build/install)
suite(remote full 180 bash bindings/python/tests/remote/check.sh)
