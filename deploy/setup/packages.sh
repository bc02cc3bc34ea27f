#!/bin/sh
# Install the Debian packages that Relume's lab, tests and demo need, and only those that are missing.
#
#   sh deploy/setup/packages.sh [GROUP...]        groups: lab, test, browser (default: lab)
#
# Idempotent, asks nothing, uses sudo when not root. Starts no service: the lab and the tests run their own daemons.
set -eu

POLICY=/usr/sbin/policy-rc.d

die() {
    echo "packages.sh: $*" >&2
    exit 2
}

packages_of() {
    case $1 in
        lab)
            # Of MariaDB the programs alone: mariadb-server would add a service, a user and a database of its own.
            echo slurm-wlm slurmctld slurmd slurm-client slurmdbd munge mariadb-server-core mariadb-client-core \
                iproute2 util-linux passwd python3 python3-venv git make
            ;;
        test) echo redis-server postgresql sudo python3-venv git make btrfs-progs ;;
        browser) echo chromium ;;
        *) die "unknown group '$1' (lab, test, browser)" ;;
    esac
}

installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    else
        sudo "$@"
    fi
}

apt() {
    # The index may be held by another apt for a moment, on a fresh machine for minutes.
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 "$@"
}

# A service is started by its package unless policy-rc.d says no (101). A policy that is already there comes back.
forbid_services() {
    trap 'allow_services' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    if [ -e "$POLICY" ] || [ -L "$POLICY" ]; then
        as_root mv "$POLICY" "$POLICY.relume-saved"
    fi
    printf '#!/bin/sh\n# relume: packages.sh is installing\nexit 101\n' | as_root tee "$POLICY" >/dev/null
    as_root chmod 755 "$POLICY"
}

allow_services() {
    if grep -qs '^# relume: packages.sh' "$POLICY"; then
        as_root rm -f "$POLICY"
    fi
    if [ -e "$POLICY.relume-saved" ] || [ -L "$POLICY.relume-saved" ]; then
        as_root mv "$POLICY.relume-saved" "$POLICY"
    fi
}

is_debian() {
    command -v apt-get >/dev/null && command -v dpkg-query >/dev/null && grep -q '^ID=debian$' /etc/os-release
}

main() {
    is_debian || die "this is not Debian (12 or 13): install Slurm, munge and the rest named in this file yourself"
    [ "$#" -gt 0 ] || set -- lab

    # One run at a time: the guard below is one file for the whole machine.
    exec 9</var/lib/dpkg
    flock 9
    allow_services # what a killed run may have left

    missing=
    for group in "$@"; do
        names=$(packages_of "$group") || exit $?
        for name in $names; do
            installed "$name" || missing="$missing $name"
        done
    done
    if [ -z "$missing" ]; then
        echo "packages.sh: nothing to install for: $*"
        return
    fi
    [ "$(id -u)" -eq 0 ] || command -v sudo >/dev/null || die "run it as root (there is no sudo here); missing:$missing"

    echo "packages.sh: installing$missing"
    forbid_services
    apt update
    # shellcheck disable=SC2086
    apt install --no-install-recommends $missing
}

main "$@"
