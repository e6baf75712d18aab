# Sourced by the scripts in this directory. Makes a working directory with a database, and puts shims first on the PATH.
set -euo pipefail

[ $# -eq 1 ] && [ -d "$1" ] || { echo "usage: $0 CHECKOUT" >&2; exit 64; }
CHECKOUT=$(cd "$1" && pwd)
TENURE=$(command -v "${TENURE:-tenure}") || { echo "no tenure: set TENURE" >&2; exit 64; }
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
mkdir "$WORK/bin" "$WORK/state"
export TENURE XDG_STATE_HOME=$WORK/state PATH=$WORK/bin:$PATH
unset TENURE_DATABASE_URL

# shim NAME: installs the script on stdin as NAME. The script turns the arguments of NAME into those of tenure.
shim() {
    { echo '#!/bin/bash'; cat; } > "$WORK/bin/$1"
    chmod +x "$WORK/bin/$1"
}

# Copies the files of a checkout, which may be a work tree or a bare repository.
unpack() {
    mkdir -p "$WORK/src"
    if [ -e "$CHECKOUT/$1" ]; then
        cp -r "$CHECKOUT/." "$WORK/src"
    else
        git -C "$CHECKOUT" archive HEAD | tar -x -C "$WORK/src"
    fi
    cd "$WORK/src"
}
