#!/bin/bash
#SBATCH --job-name=nccl_vs_mpi-001
#SBATCH --partition=gpu2
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=6
#SBATCH --gres=gpu:4
#SBATCH --mem-per-cpu=2583M
#SBATCH --exclusive
#SBATCH --time=0:15:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --output=output-%j.log
#SBATCH --open-mode=append

# Study nccl_vs_mpi, partition gpu2: 1 cell of 4 workers on 1 node, about 1 min 30 s in all.
# Made by `horovod-study run`, which submits it; without it: cd to its folder, then sbatch script.sh
# The cells, in the order in which they are run:
#   horovod/nccl, 4 workers, repeat 1  horovod-nccl-4w-b75-r0-0123456789ab

set -euo pipefail

# Settings of the shell that submitted this are no part of the study.
for name in "${!HOROVOD_@}" "${!OMPI_@}" "${!PMIX_@}" "${!NCCL_@}" "${!SBATCH_@}" "${!PYTHON@}"; do
    case "$name" in HOROVOD_STUDY_*) ;; *) unset "$name" ;; esac
done
unset SLURM_EXPORT_ENV LD_PRELOAD

# When the job is taken off its nodes, mpirun lets its ranks write a checkpoint (default: 1 s).
export OMPI_MCA_odls_base_sigkill_timeout=3
export HOROVOD_STUDY_DATA=/scratch/me/curves
# NCCL_P2P_DISABLE: a setting of the original study on this partition, whose notes give no cause; with it gradients go from GPU to GPU through the memory of the host instead of directly
export NCCL_P2P_DISABLE=1
export PYTHONPATH=/scratch/me/runs/nccl_vs_mpi/.code/0123456789ab

exec /home/me/horovod-study/.venv/bin/python -P -m horovod_study.studies.job /scratch/me/runs/nccl_vs_mpi/.jobs/nccl_vs_mpi-001
