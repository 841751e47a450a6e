#!/usr/bin/env bash
# Checks what the package index cannot give: Java 17 or newer, and a Python 3.11-3.14. Says nothing when both are there;
# otherwise one line a finding, with the package to install, and ends with 1.
set -euo pipefail
cd "$(dirname "$0")/.."

java="${JAVA_HOME:+$JAVA_HOME/bin/}java"
# `openjdk version "17.0.15"`, and in the old scheme "1.8.0_422", whose major is then 1.
major="$({ "$java" -version 2>&1 || true; } | sed -n 's/^.* version "\([0-9]*\).*$/\1/p' | head -n 1)"
found=0
if [ -z "$major" ] || [ "$major" -lt 17 ]; then
    if [ -n "$major" ]; then
        have="$java is version $major"
    elif [ -n "${JAVA_HOME:-}" ]; then
        have="JAVA_HOME=$JAVA_HOME has no java that runs"
    else
        have="none was found"
    fi
    case "$(command -v apt-get dnf brew 2>/dev/null | head -n 1)" in
        */dnf) install="dnf install java-21-openjdk-headless" ;;
        */brew) install="brew install openjdk@21" ;;
        *) install="apt-get install openjdk-17-jre-headless (or openjdk-21-jre-headless)" ;;
    esac
    echo "tidegate: Java 17 or newer is needed and $have; install it, for example: $install" >&2
    found=1
fi

if ! .venv/bin/python -c 'import sys' >/dev/null 2>&1; then
    tools/find_python.sh >/dev/null || found=1
fi
exit "$found"
