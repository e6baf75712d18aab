#!/bin/sh
# Keeps one throw-away PostgreSQL server. It outlives the test process that started it by just long enough to
# stop the server and remove its files, however that process ended: the end of standard input says so.
#
# usage: keeper BIN HOME
# Reads one command a line, with the port of another server where it needs one, and answers each with one line, "ok"
# or "failed".

set -u
bin=$1
home=$2
data=$home/data

# What is to be loaded, a false clock, is for the server alone. Its processes share a lock, which one of them that is
# killed leaves locked: whoever ends the server must not need it, nor the next server.
preload=${LD_PRELOAD-}
unset LD_PRELOAD FAKETIME_SHARED

# A signal meant for the tests must not take the keeper along; a reader that is gone must not either.
trap '' HUP INT QUIT TERM PIPE

server_processes() {
    [ -s "$data/postmaster.pid" ] || return 0
    read -r postmaster <"$data/postmaster.pid"
    echo "$postmaster"
    if [ ! -r /proc/self/stat ]; then
        ps -A -o pid=,ppid= | while read -r pid parent; do
            [ "$parent" != "$postmaster" ] || echo "$pid"
        done
        return 0
    fi
    for stat in /proc/[0-9]*/stat; do
        { read -r line <"$stat"; } 2>/dev/null || continue
        rest=${line##*) ? }
        [ "${rest%% *}" != "$postmaster" ] || echo "${line%% *}"
    done
}

signal_server() {
    server_processes | while read -r pid; do
        kill -s "$1" "$pid" 2>/dev/null
    done
}

control() {
    "$bin/pg_ctl" "$@" -D "$data" -w </dev/null >>"$home/control.log" 2>&1
}

start_server() {
    (
        export LD_PRELOAD="$preload"
        control start -t 60 -l "$home/server.log"
    )
}

while read -r command port; do
    case $command in
    init)
        "$bin/initdb" -D "$data" -U postgres -A trust -E UTF8 --locale=C --no-sync --no-instructions \
            </dev/null >>"$home/control.log" 2>&1
        ;;
    copy)
        "$bin/pg_basebackup" -D "$data" -h 127.0.0.1 -p "$port" -U postgres -R -X stream -c fast --no-sync \
            </dev/null >>"$home/control.log" 2>&1
        ;;
    start) start_server ;;
    stop) control stop -t 60 -m fast ;;
    crash) control stop -t 60 -m immediate ;;
    demote) control stop -t 60 -m fast && : >"$data/standby.signal" && start_server ;;
    promote) control promote -t 60 ;;
    restart)
        control stop -t 60 -m immediate
        start_server
        ;;
    *) false ;;
    esac && echo ok || echo failed
done

signal_server CONT
control stop -t 20 -m immediate || signal_server KILL
rm -rf "$home"
