#!/usr/bin/env bash
#SBATCH --job-name=night
#SBATCH --nodes=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --mem=256G
#SBATCH --time=06:00:00
#SBATCH --output=night-%j.log
# A GPU night as a Slurm job: sbatch nightly/slurm.sh a100 [words for pytest]
# The partition, account and modules of your cluster go into your own sbatch options; the job's exit status is the gate's.
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:?submit this with sbatch, from the repository}"

platform=${1:?usage: sbatch nightly/slurm.sh PLATFORM [words for pytest]}
shift
export RUN_DIR=${RUN_DIR:-runs/night-${SLURM_JOB_ID:?}}
command -v tox > /dev/null || python3 -m pip install --quiet --user 'tox>=4.67'
exec nightly/night.sh "$platform" "$@"
