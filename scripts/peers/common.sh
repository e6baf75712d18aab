# Sourced by the scripts beside it: a place to work in, with a database, and shims that come first on the PATH.
set -euo pipefail

[ $# -eq 1 ] && [ -d "$1" ] || { echo "usage: $0 CHECKOUT" >&2; exit 64; }
CHECKOUT=$(cd "$1" && pwd)
TENURE=$(command -v "${TENURE:-tenure}") || { echo "no tenure: set TENURE" >&2; exit 64; }
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
mkdir "$WORK/bin" "$WORK/state"
export TENURE XDG_STATE_HOME=$WORK/state PATH=$WORK/bin:$PATH
unset TENURE_DATABASE_URL

# shim NAME: reads a script that turns the arguments of NAME into ours.
shim() {
    { echo '#!/bin/bash'; cat; } > "$WORK/bin/$1"
    chmod +x "$WORK/bin/$1"
}

# The files of a checkout, whether it has a work tree or is a bare repository.
unpack() {
    mkdir -p "$WORK/src"
    if [ -e "$CHECKOUT/$1" ]; then
        cp -r "$CHECKOUT/." "$WORK/src"
    else
        git -C "$CHECKOUT" archive HEAD | tar -x -C "$WORK/src"
    fi
    cd "$WORK/src"
}
