# The machine works: verbs devices can be made, and are active.
set -euo pipefail
scripts/rdma-vm/devices.sh 2
ls /sys/class/infiniband
grep -q ACTIVE /sys/class/infiniband/rxe1/ports/1/state
