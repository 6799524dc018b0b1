#!/usr/bin/env bash
# Measures what this machine can answer, and writes it down: benchmarks/measure.sh --help
exec python3 "$(dirname "${BASH_SOURCE[0]}")/measure.py" "$@"
