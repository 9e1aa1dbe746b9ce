#!/bin/sh
# A node: supernode.sh SUPERLINK CA KEY PARTITION DATA STATE [HOST [PORT]]
#
# SUPERLINK: host:port. CA: ca.crt of the server. KEY: node.key, whose node.pub is registered.
# PARTITION: 0, 1, ..., another for each node. DATA: this node's images, STATE: a folder that it
# keeps its state in; both absolute. HOST, PORT: for this machine's own processes alone.
# What Flower installs goes to FLWR_HOME, STATE-flower unless set: nodes of one user that share it
# would install the same bundle at once, and the second would run half of it.
# FEDCEL_NODE_CONFIG: further keys of the node, as 'leak-limit=1.0 ledger-path="/srv/budget.db"'.
set -eu
if [ $# -lt 6 ] || [ $# -gt 8 ]; then
    sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
umask 077
export FLWR_TELEMETRY_ENABLED="${FLWR_TELEMETRY_ENABLED:-0}"
export FLWR_DISABLE_UPDATE_CHECK="${FLWR_DISABLE_UPDATE_CHECK:-1}"
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL="${FLWR_SUPEREXEC_TASK_POLL_INTERVAL:-0.1}"
export FLWR_HOME="${FLWR_HOME:-$6-flower}"
exec python "$(dirname "$0")/supernode.py" \
    --superlink "$1" --root-certificates "$2" --auth-supernode-private-key "$3" \
    --host "${7:-127.0.0.1}" --port "${8:-9094}" \
    --node-config "partition-id=$4 data-path=\"$5\" state-path=\"$6\"${FEDCEL_NODE_CONFIG:+ $FEDCEL_NODE_CONFIG}"
