#!/usr/bin/env bash
# Test 1 of the paper: the distance to the optimum, round by round, for every method, on a9a and w8a.
#   experiments/test1.sh FOLDER      FOLDER holds the LIBSVM files a9a and w8a
#   fedpm compare runs/test1 --metric opt/distance --plots docs/figures --x rounds
# Finished runs are not run again.
set -euo pipefail
folder=$1
methods="psgd fedavg fedavgm fedprox scaffold fedadam fednl fednl_rank1 fednew fedns local_newton ltda fedsophia fedpm fedpm_corrected"
for data in a9a w8a; do
  for method in $methods; do
    run="runs/test1/$data-$method"
    grep -qs '"finished": true' "$run/summary.json" && continue
    fedpm fit --config "configs/$data.yaml" --config "configs/method/convex/$method.yaml" \
      --config "configs/paper/test1_$data.yaml" --data.source "$folder/$data" --run_dir "$run" \
      || echo "$run: failed"
  done
done
