suite(artefacts full 3000 bash packaging/check.sh)
