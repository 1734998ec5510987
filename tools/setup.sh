#!/bin/sh
# Fills .venv with everything at the tested versions, or says in one line what to do.
set -u

stop() {
    echo "Set-up stopped: $*" >&2
    exit 1
}

suits() { # is $1 a Python that the dependencies have wheels for?
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' 2>/dev/null
}

if ! suits .venv/bin/python || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    found=
    for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3.14 python3 python}; do
        if suits "$candidate"; then
            found=$candidate
            break
        fi
    done
    [ -n "$found" ] || stop "Python 3.11 to 3.14 is needed, and ${PYTHON:-this machine} has none;" \
        "install one, or name it: make PYTHON=/path/to/python3.11"
    "$found" -m venv --clear .venv >/dev/null 2>&1 || stop "$found cannot create .venv;" \
        "install its venv module (Debian, Ubuntu: apt-get install python3-venv) and try again"
fi

# pip writes INSTALLER when a package is complete; a package without it was cut short, and pip
# would trust it all the same.
for info in .venv/lib/python*/site-packages/*.dist-info; do
    [ -f "$info/INSTALLER" ] || rm -rf "$info"
done

echo "Installing into .venv; this takes a few minutes, once."
.venv/bin/python -m pip install -e ".[book,test]" -c constraints.txt || stop \
    "pip failed (its message is above); check the network and the disk, then run make again"

# JupyterLab would ask at every start whether it may fetch news, and look for newer versions.
mkdir -p .venv/etc/jupyter/labconfig
echo '{"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": true}}' \
    > .venv/etc/jupyter/labconfig/page_config.json
