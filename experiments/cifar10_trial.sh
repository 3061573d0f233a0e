#!/usr/bin/env bash
# The CIFAR-10 trial of the README's results: tune each method on seed 0, then run seeds 1 to 6 with what won.
#   experiments/cifar10_trial.sh tune  SOURCE   -> runs/trial-tune/   (choose by val/acc)
#   experiments/cifar10_trial.sh final SOURCE   -> runs/trial-final/
#   fedpm compare runs/trial-final --format markdown
# SOURCE is what --data.source takes: torchvision, or a folder of parquet files. Finished runs are not run again;
# SEEDS="1 3 5" leaves the others to another process.
set -euo pipefail
stage=$1 source=$2

fit() { # NAME METHOD SEED KEY=VALUE...
  local folder="runs/trial-$stage/$1-s$3" method=$2 seed=$3
  grep -qs '"finished": true' "$folder/summary.json" && return
  shift 3
  fedpm fit --config configs/cifar10_cnn.yaml --config "configs/method/$method.yaml" \
    --config configs/trial/cifar10_4000.yaml --data.source "$source" --seed_everything "$seed" \
    --run_dir "$folder" "${@/#/--model.method.}" || echo "$folder: failed (a rate that diverges is a result too)"
}

if [ "$stage" = tune ]; then
  for lr in 0.03 0.1 0.3; do fit "fedavg-$lr" fedavg 0 lr=$lr; done
  for pair in "0.1 3" "0.3 10" "1.0 30"; do
    read -r lr delta <<<"$pair"
    fit "local_newton-$lr-$delta" local_newton 0 lr=$lr preconditioner.damping=$delta
  done
  for triple in "0.1 3 0.3" "0.3 10 1" "0.3 10 0.3"; do
    read -r lr delta mix <<<"$triple"
    fit "fedpm-$lr-$delta-$mix" fedpm 0 lr=$lr preconditioner.damping=$delta mix_damping=$mix
  done
  for pair in "0.03 1" "0.1 1" "0.1 3" "0.3 3"; do
    read -r lr delta <<<"$pair"
    fit "fedpm_paper-$lr-$delta" fedpm_paper 0 lr=$lr preconditioner.damping=$delta
  done
else
  for seed in ${SEEDS:-1 2 3 4 5 6}; do
    fit fedavg fedavg $seed lr=0.1
    fit local_newton local_newton $seed lr=1.0 preconditioner.damping=30
    fit fedpm fedpm $seed
    fit fedpm_mix0.3 fedpm $seed mix_damping=0.3
    fit fedpm_paper fedpm_paper $seed lr=0.3 preconditioner.damping=3
    fit fedpm_every fedpm $seed preconditioner.cov_every=1 preconditioner.inv_every=1 preconditioner.max_rows=null # every factor at every step
  done
fi
