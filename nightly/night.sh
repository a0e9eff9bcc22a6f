#!/usr/bin/env bash
# One GPU night: judge every case of PLATFORM on this machine and leave what it found. Exit status: pytest's, and nothing else.
#
#   nightly/night.sh a100                 # or h100, h200
#   nightly/night.sh a100 -k zero3        # words after the platform go to pytest
#   WEIGHTS=/models/mistral nightly/night.sh a100
#
# RUN_DIR   where cases are recorded (default: runs/night-<time>); it must be empty
# SUMMARY   a file that the report is added to; default: the job summary of GitHub Actions, where there is one
# WEIGHTS   a folder of pretrained weights for the full-size cases of that model
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

platform=${1:?usage: nightly/night.sh PLATFORM [words for pytest]}
shift
run_dir=${RUN_DIR:-runs/night-$(date -u +%Y-%m-%dT%H%M%SZ)}
summary=${SUMMARY:-${GITHUB_STEP_SUMMARY:-}}
words=(-m "$platform" --full "--run-dir=$run_dir")
if [[ -n ${WEIGHTS:-} ]]; then words+=("--weights=$WEIGHTS"); fi

status=0
tox run -e nightly -- "${words[@]}" "$@" || status=$?
if [[ -n $summary && -f $run_dir/report.md ]]; then cat "$run_dir/report.md" >> "$summary"; fi
echo "night: $platform ended with status $status; recorded in $run_dir"
exit "$status"
