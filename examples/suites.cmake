suite(main-job default 18 bash examples/run.sh)
