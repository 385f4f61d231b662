#!/bin/bash
#SBATCH --job-name=nccl_vs_mpi-001
#SBATCH --partition=alpha
#SBATCH --account=p_scaling
#SBATCH --qos=high
#SBATCH --constraint=a100&ib
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=6
#SBATCH --gres=gpu:8
#SBATCH --mem-per-cpu=10312M
#SBATCH --exclusive
#SBATCH --time=0:15:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --array=0-1
#SBATCH --output=output-%A_%a.log
#SBATCH --open-mode=append

# Study nccl_vs_mpi, partition alpha: 6 cells of 16 workers on 2 nodes, about 9 min in all.
# Made by `horovod-study run`, which submits it; without it: cd to its folder, then sbatch script.sh
# The cells, in the order in which they are run:
# task 0:
#   horovod/nccl, 16 workers, 2 nodes, repeat 1  horovod-nccl-16w-b75-r0-0123456789ab
#   horovod/mpi, 16 workers, 2 nodes, repeat 1  horovod-mpi-16w-b75-r0-0123456789ab
#   horovod/nccl, 16 workers, 2 nodes, repeat 2  horovod-nccl-16w-b75-r1-0123456789ab
#   horovod/mpi, 16 workers, 2 nodes, repeat 2  horovod-mpi-16w-b75-r1-0123456789ab
# task 1:
#   horovod/mpi, 16 workers, 2 nodes, repeat 3  horovod-mpi-16w-b75-r2-0123456789ab
#   horovod/nccl, 16 workers, 2 nodes, repeat 3  horovod-nccl-16w-b75-r2-0123456789ab

set -euo pipefail

# Settings of the shell that submitted this are no part of the study.
for name in "${!HOROVOD_@}" "${!OMPI_@}" "${!PMIX_@}" "${!NCCL_@}" "${!SBATCH_@}" "${!PYTHON@}"; do
    case "$name" in HOROVOD_STUDY_*) ;; *) unset "$name" ;; esac
done
unset SLURM_EXPORT_ENV LD_PRELOAD

# When the job is taken off its nodes, mpirun lets its ranks write a checkpoint (default: 1 s).
export OMPI_MCA_odls_base_sigkill_timeout=3
export HOROVOD_STUDY_DATA=/scratch/me/curves
export PYTHONPATH=/scratch/me/runs/nccl_vs_mpi/.code/0123456789ab

exec /home/me/horovod-study/.venv/bin/python -P -m horovod_study.studies.job /scratch/me/runs/nccl_vs_mpi/.jobs/nccl_vs_mpi-001
