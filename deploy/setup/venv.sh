#!/bin/sh
# Makes the virtual environment given as $1 from an interpreter that every user may execute: the lab's jobs run as an
# ordinary user, and an interpreter below a 0700 home (pyenv under /root) would be closed to them.
set -eu
venv=$1
root=$(cd "$(dirname "$0")/../.." && pwd)

usable() { # an interpreter of 3.11 or newer whose real path every user can reach
    real=$("$1" -c 'import os, sys; print(os.path.realpath(sys.executable)) if sys.version_info >= (3, 11) else sys.exit(1)' 2>/dev/null) || return 1
    path=$real
    while [ "$path" != / ]; do
        case $(stat -c %A "$path") in *[xt]) ;; *) return 1 ;; esac
        path=$(dirname "$path")
    done
    "$1" -c 'import venv, ensurepip' 2>/dev/null
}

python=
for candidate in ${PYTHON:-} /usr/bin/python3.13 /usr/bin/python3.12 /usr/bin/python3.11 /usr/local/bin/python3 python3; do
    if command -v "$candidate" >/dev/null 2>&1 && usable "$candidate"; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "relume: no Python 3.11 or newer that every user may execute was found (with venv). Install python3 and" >&2
    echo "relume: python3-venv from your distribution, or name one: PYTHON=/path/to/python3 make venv" >&2
    exit 2
fi
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
constraints=$root/constraints/python$version.txt
[ -f "$constraints" ] || constraints=$root/constraints/python3.13.txt
echo "relume: environment in $venv with $python ($version), about 2 minutes"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install -q --disable-pip-version-check -c "$constraints" setuptools
# shellcheck disable=SC2086 # PIP_ARGS is a list of words
"$venv/bin/python" -m pip install -q --disable-pip-version-check ${PIP_ARGS:-} -c "$constraints" torch numpy
"$venv/bin/python" -m pip install -q --disable-pip-version-check -c "$constraints" --no-build-isolation \
    -e "$root[controller,postgres,local,train,stacks,dev]"
