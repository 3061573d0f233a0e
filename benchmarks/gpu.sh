#!/usr/bin/env bash
# One table of a GPU against this machine's CPU, in at most eight minutes: bash benchmarks/gpu.sh [FOLDER]
# Needs a CUDA device that torch sees; the network is not used (made-up images of CIFAR-10's shape).
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-benchmarks/results}
python -c "import sys, torch; sys.exit(0 if torch.cuda.is_available() else 'torch sees no CUDA device')"
mkdir -p "$out"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4} PYTHONPATH=src
timeout 470 python -m benchmarks.gpu --markdown "$out" --seconds 420
