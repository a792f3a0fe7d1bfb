suite(gap full 90 bash lab/gap/check.sh)
