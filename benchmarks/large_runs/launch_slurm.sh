#!/bin/bash
# Two nodes with four devices each: chains in two groups, rows on four devices of each.
# JAX finds the coordinator and the other processes by itself under SLURM.
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --time=24:00:00
# Submit it from the root of the checkout: `sbatch benchmarks/large_runs/launch_slurm.sh`.
srun python -m benchmarks.large_runs.distributed --distributed --groups 2 --chains 4 --checkpoint run --out draws.npz
