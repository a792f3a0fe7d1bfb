suite(replay default 30 bash lab/gap/check.sh)
