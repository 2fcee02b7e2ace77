#!/bin/sh
# need.sh build|test|check - make sure that what building, testing or checking needs is installed.
# Looks first and installs only what is missing, so it works offline once everything is there. On
# systems without apt it names what to install by hand.
level=${1:-build}
missing=
need() { # PACKAGE COMMAND: the package unless the command is there
    command -v "$2" > /dev/null 2>&1 || missing="$missing $1"
}
need_header() { # PACKAGE HEADER [-D...]
    echo "#include <$2>" | "${CC:-gcc}" -E -x c $3 - > /dev/null 2>&1 || missing="$missing $1"
}
need gcc "${CC:-gcc}"
need make make
if command -v "${CC:-gcc}" > /dev/null 2>&1; then
    need_header libc6-dev stdio.h
    need_header libssl-dev openssl/evp.h
    need_header libutf8proc-dev utf8proc.h
    need_header libpcre2-dev pcre2.h -DPCRE2_CODE_UNIT_WIDTH=8
    need_header libedit-dev histedit.h
    need_header libmicrohttpd-dev microhttpd.h
else
    missing="$missing libc6-dev libssl-dev libutf8proc-dev libpcre2-dev libedit-dev libmicrohttpd-dev"
fi
if [ "$level" != build ]; then
    need python3 python3
    need g++ g++
    need pkg-config pkg-config
    need valgrind valgrind
    [ -e /usr/share/i18n/locales/de_DE ] || missing="$missing locales"
    need chromium chromium
    need zsh zsh
    need fish fish
    python3 -m pip --version > /dev/null 2>&1 || missing="$missing python3-pip"
    python3 -c 'import ensurepip, venv' > /dev/null 2>&1 || missing="$missing python3-venv"
fi
if [ "$level" = check ]; then
    need clang clang
    need clang-format clang-format
    echo 'int LLVMFuzzerTestOneInput(const unsigned char *p, unsigned long n) { return p && n > 9; }' |
        clang -x c -fsanitize=fuzzer,address - -o /dev/null 2> /dev/null ||
        missing="$missing libclang-rt-$(clang --version 2> /dev/null | sed -n 's/.*version \([0-9]*\).*/\1/p;q' | grep . || echo 14)-dev"
fi
[ -z "$missing" ] && exit 0

echo "missing:$missing" >&2
if ! command -v apt-get > /dev/null 2>&1; then
    echo 'This system has no apt-get. Install what the Debian packages above stand for, then try again.' >&2
    exit 1
fi
sudo=
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo > /dev/null 2>&1; then
        echo "Run as root: apt-get install$missing" >&2
        exit 1
    fi
    sudo=sudo
fi
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq || echo 'apt-get update failed; trying with the lists that are there' >&2
if ! $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >&2; then
    echo "Could not install:$missing. Install them by hand, then try again." >&2
    exit 1
fi
