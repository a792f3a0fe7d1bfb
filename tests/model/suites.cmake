suite(model default 6 bash tests/model/check.sh)
