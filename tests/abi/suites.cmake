suite(abi default 6 bash tests/abi/check.sh)
suite(abi-proof full 60 bash tests/abi/prove.sh . c++)
