#!/bin/sh
# The server: superlink.sh CERTIFICATES DATABASE [HOST [PORT]]
#
# CERTIFICATES: the folder of certificates.py. DATABASE: a file that keeps registered nodes over a
# restart. HOST: the address to listen on, 0.0.0.0 for all. Runs write where their `out` says.
# A reply of more than FEDCEL_REPLY_MEGABYTES (100 unless set) is refused: see superlink.py.
set -eu
if [ $# -lt 2 ]; then
    sed -n '2,6s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
umask 077 # the database holds updates of clients
export FLWR_TELEMETRY_ENABLED="${FLWR_TELEMETRY_ENABLED:-0}"
export FLWR_DISABLE_UPDATE_CHECK="${FLWR_DISABLE_UPDATE_CHECK:-1}"
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL="${FLWR_SUPEREXEC_TASK_POLL_INTERVAL:-0.1}"
exec python "$(dirname "$0")/superlink.py" "${FEDCEL_REPLY_MEGABYTES:-100}" \
    --host "${3:-0.0.0.0}" --port "${4:-9092}" \
    --ssl-ca-certfile "$1/ca.crt" --ssl-certfile "$1/server.crt" --ssl-keyfile "$1/server.key" \
    --enable-supernode-auth --database "$2" --disable-runtime-dependency-installation
